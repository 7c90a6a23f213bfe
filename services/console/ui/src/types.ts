// The messages of the API as far as the console shows them. Fields without a value are absent.

export interface Lane {
  queued?: number;
  dequeued?: number;
  quarantined?: number;
  queuedBytes?: string;
}

export interface Agent {
  agentId: string;
  visibility?: string;
  preset?: string;
  lineageParentAgentId?: string;
  supervisorAgentId?: string;
  workspaceRoot?: string;
  lifecycle?: string;
  control?: string;
  controlBy?: string;
  controlAt?: string;
  controlReason?: string;
  currentRunId?: string;
  currentTurnId?: string;
  idleTurns?: number;
  createdAt?: string;
  updatedAt?: string;
  posture?: string;
  postureReason?: string;
  currentWorkItemId?: string;
  lane?: Lane;
}

export interface Wait {
  waitId: string;
  agentId?: string;
  workItemId?: string;
  mode?: string;
  kind?: string;
  reason?: string;
  source?: string;
  condition?: string;
  resource?: string;
  resourceDescription?: string;
  status?: string;
  createdAt?: string;
  dueAt?: string;
  recheckAt?: string;
  triggered?: boolean;
  triggerCount?: string;
  weakReason?: string;
}

export interface Todo {
  text: string;
  state?: string;
}

export interface WorkItem {
  workItemId: string;
  agentId?: string;
  objective: string;
  state?: string;
  planStatus?: string;
  todoList?: Todo[];
  blockedBy?: string;
  blockedByWaitId?: string;
  resultSummary?: string;
  recheckAt?: string;
  revision?: string;
  createdAt?: string;
  updatedAt?: string;
  completedAt?: string;
  planArtifact?: { path?: string; preview?: string; previewComplete?: boolean; problem?: string; bytes?: string };
  schedulingState?: string;
  readiness?: string;
  reasonCode?: string;
  candidateClass?: string;
  isCurrent?: boolean;
  currentTodo?: Todo;
  waits?: Wait[];
}

export interface WorkQueue {
  current?: WorkItem;
  triggeredBlocked?: WorkItem[];
  queuedRunnable?: WorkItem[];
  waitingForOperator?: WorkItem[];
  blocked?: WorkItem[];
  completedRecent?: WorkItem[];
  counts?: { open?: number; triggeredBlocked?: number; queuedRunnable?: number; waitingForOperator?: number; blocked?: number; completed?: number };
}

export interface Message {
  messageId: string;
  agentId?: string;
  kind?: string;
  text?: string;
  data?: string;
  contentType?: string;
  priority?: string;
  origin?: string;
  authority?: string;
  state?: string;
  attempts?: number;
  workItemId?: string;
  createdAt?: string;
  updatedAt?: string;
  stateReason?: string;
  turnId?: string;
  sourceDescription?: string;
}

export interface Turn {
  turnId: string;
  runId?: string;
  messageId?: string;
  workItemId?: string;
  state?: string;
  endReason?: string;
  rounds?: number;
  mutations?: number;
  runnerId?: string;
  startedAt?: string;
  endedAt?: string;
}

export interface ToolCall {
  callId: string;
  name: string;
  arguments?: unknown;
}

export interface ToolResult {
  callId: string;
  toolName?: string;
  status?: string;
  summaryText?: string;
  result?: unknown;
  error?: { kind?: string; message?: string; recoveryHint?: string };
}

export interface Round {
  turnId: string;
  index?: number;
  text?: string;
  toolCalls?: ToolCall[];
  toolResults?: ToolResult[];
  localToolCalls?: ToolCall[];
  localToolResults?: ToolResult[];
  usage?: { inputTokens?: string; outputTokens?: string };
  workItemId?: string;
  createdAt?: string;
  settled?: boolean;
}

export interface Verdict {
  action?: string;
  tickReason?: string;
  reason?: string;
  workItemId?: string;
  explanation?: string;
  decidedAt?: string;
}

export interface Explanation {
  verdict?: Verdict;
  facts?: { name: string; value?: string }[];
  candidates?: { workItemId: string; objective?: string; candidateClass?: string; chosen?: boolean; why?: string; waitingFor?: string }[];
  recent?: Verdict[];
}

export interface Trigger {
  triggerId: string;
  description?: string;
  deliveryMode?: string;
  status?: string;
  deliveryCount?: string;
  lastDeliveredAt?: string;
  expiresAt?: string;
  workItemId?: string;
}

export interface Timer {
  timerId: string;
  description?: string;
  status?: string;
  nextFireAt?: string;
  every?: string;
  fireCount?: string;
  count?: string;
}

export interface Task {
  taskId: string;
  agentId?: string;
  kind?: string;
  state?: string;
  label?: string;
  workItemId?: string;
  command?: { cmd?: string; argv?: string[]; workdir?: string; tty?: boolean; acceptsInput?: boolean; timeout?: string; pool?: string };
  exitCode?: number;
  endReason?: string;
  endMessage?: string;
  workerId?: string;
  outputBytes?: string;
  outputTruncated?: boolean;
  createdAt?: string;
  startedAt?: string;
  endedAt?: string;
  childAgentId?: string;
  terminal?: boolean;
  acceptsInputNow?: boolean;
  queueMessage?: string;
}

export interface Delegation {
  delegationId: string;
  childAgentId?: string;
  label?: string;
  state?: string;
  outcome?: string;
  resultSummary?: string;
  taskId?: string;
  createdAt?: string;
  completedAt?: string;
  questions?: { waitId: string; text?: string; askedAt?: string }[];
}

export interface Brief {
  briefId: string;
  kind?: string;
  text?: string;
  workItemId?: string;
  createdAt?: string;
}

export interface QuartetEvent {
  cursor: string;
  eventId: string;
  eventType: string;
  plane: string;
  agentId?: string;
  sessionId?: string;
  taskId?: string;
  stepId?: string;
  workItemId?: string;
  actorAgentId?: string;
  principal?: string;
  requestId?: string;
  payload?: Record<string, unknown>;
  createdAt?: string;
  readinessFrom?: string;
  readinessTo?: string;
  traceparent?: string;
}

export interface Step {
  stepId: string;
  title?: string;
  summary?: string;
  status?: string;
  dependsOnStepIds?: string[];
  required?: boolean;
  workerPoolId?: string;
  claimedByAgentId?: string;
  claimedByRunId?: string;
  resultSummary?: string;
  artifactIds?: string[];
  reason?: string;
  updatedAt?: string;
}

export interface Board {
  boardId: string;
  sessionId: string;
  title?: string;
  summary?: string;
  status?: string;
  steps?: Step[];
  reason?: string;
  revision?: string;
  createdAt?: string;
  updatedAt?: string;
  counts?: Record<string, number>;
  defaultWorkerPoolId?: string;
  terminating?: boolean;
  diagnostics?: { stalled?: boolean; stalledByStepIds?: string[]; completeable?: boolean; notCompleteableByStepIds?: string[] };
}

export interface WorkerRun {
  runId: string;
  workerId?: string;
  workerPoolId?: string;
  dispatchId?: string;
  status?: string;
  claimedStepId?: string;
  stepStatus?: string;
  stepResultSummary?: string;
  workerResult?: string;
  endReason?: string;
  dispatchedAt?: string;
  endedAt?: string;
  cancelling?: boolean;
}

export interface Dispatch {
  dispatchId: string;
  workerPoolId?: string;
  maxParallel?: number;
  open?: boolean;
  running?: number;
  openedAt?: string;
}

export interface BoardWorker {
  workerId: string;
  workerPoolIds?: string[];
  capacity?: number;
  runIds?: string[];
  connectedAt?: string;
}

export interface Key {
  keyId: string;
  namespace?: string;
  role?: string;
  name?: string;
  agentId?: string;
  status?: string;
  createdAt?: string;
  createdBy?: string;
  expiresAt?: string;
  lastUsedAt?: string;
}

export interface Process {
  processId: string;
  host?: string;
  address?: string;
  services?: string[];
  version?: string;
  startedAt?: string;
  reportedAt?: string;
  damage?: string[];
  removalFailures?: string[];
  notReady?: string[];
  warning?: string;
  answer?: string;
}

export interface Installation {
  processes?: Process[];
  planes?: { name: string; up?: boolean; partitions?: number; processIds?: string[] }[];
  problems?: { plane?: string; text?: string; remedy?: string; down?: boolean }[];
  streams?: { name: string; messages?: string; bytes?: string; maxBytes?: string }[];
  storeUsedBytes?: string;
  storeLimitBytes?: string;
  storeFullIn?: string;
}

export interface WhoAmI {
  namespace?: string;
  principal?: string;
  role?: string;
  agentId?: string;
  serverTime?: string;
  serverVersion?: string;
}

export interface Utterance {
  speaker?: string;
  text?: string;
  createdAt?: string;
}

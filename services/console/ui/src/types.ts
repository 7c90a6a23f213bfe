// Generated from deploy/openapi/quartet.openapi.json by make generate; see tests/generated.
// Fields without a value are absent.

export interface Agent {
  agentId: string;
  context?: string;
  control?: string;
  controlAt?: string;
  controlBy?: string;
  controlReason?: string;
  createdAt?: string;
  currentRunId?: string;
  currentTurnId?: string;
  currentWorkItemId?: string;
  delegationId?: string;
  idleTurns?: number;
  lane?: Lane;
  lastTurnId?: string;
  lifecycle?: string;
  lineageParentAgentId?: string;
  ownership?: string;
  posture?: string;
  postureReason?: string;
  preset?: string;
  revision?: string;
  supervisorAgentId?: string;
  toolFamilies?: string[];
  updatedAt?: string;
  visibility?: string;
  workspaceMode?: string;
  workspaceRoot?: string;
  worktree?: Worktree;
}

export interface Wait {
  agentId?: string;
  condition?: string;
  consumedCount?: string;
  createdAt?: string;
  deliveryMode?: string;
  dueAt?: string;
  endReason?: string;
  endedAt?: string;
  endedBy?: string;
  kind?: string;
  lastTriggeredAt?: string;
  mode?: string;
  reason?: string;
  recheckAt?: string;
  recheckConsumedAt?: string;
  replacesWaitId?: string;
  resource?: string;
  resourceDescription?: string;
  revision?: string;
  source?: string;
  status?: string;
  triggerCount?: string;
  triggered?: boolean;
  turnId?: string;
  waitId: string;
  weakReason?: string;
  workItemId?: string;
}

export interface Todo {
  state?: string;
  text: string;
}

export interface WorkItem {
  agentId?: string;
  blockedBy?: string;
  blockedByWaitId?: string;
  candidateClass?: string;
  completedAt?: string;
  completedInTurnId?: string;
  createdAt?: string;
  currentTodo?: Todo;
  givenRecheckAt?: string;
  givenRecheckConsumedAt?: string;
  hasActiveWaits?: boolean;
  hasTriggeredWaits?: boolean;
  isCurrent?: boolean;
  objective: string;
  ownRecheckAt?: string;
  planArtifact?: PlanArtifact;
  planStatus?: string;
  readiness?: string;
  reasonCode?: string;
  recheckAt?: string;
  recheckConsumedAt?: string;
  resultBriefId?: string;
  resultSummary?: string;
  resumed?: Resumption;
  revision?: string;
  schedulingState?: string;
  state?: string;
  todoList?: Todo[];
  updatedAt?: string;
  waits?: AttachedWait[];
  workItemId: string;
}

export interface WorkQueue {
  agentId?: string;
  blocked?: WorkItem[];
  changedAt?: string;
  completedRecent?: WorkItem[];
  counts?: WorkQueueCounts;
  current?: WorkItem;
  named?: WorkItem;
  passedOver?: WorkItem[];
  queuedRunnable?: WorkItem[];
  rechecks?: WorkItem[];
  revision?: string;
  triggeredBlocked?: WorkItem[];
  waitingForOperator?: WorkItem[];
}

export interface Message {
  agentId?: string;
  answeredWaitId?: string;
  attempts?: number;
  authority?: string;
  causationId?: string;
  contentType?: string;
  correlationId?: string;
  createdAt?: string;
  data?: string;
  delegationId?: string;
  kind?: string;
  messageId: string;
  origin?: string;
  priority?: string;
  progressedAttempts?: number;
  sourceDescription?: string;
  state?: string;
  stateReason?: string;
  taskId?: string;
  text?: string;
  tick?: Tick;
  timerId?: string;
  traceparent?: string;
  triggerId?: string;
  turnId?: string;
  updatedAt?: string;
  waitIds?: string[];
  workItemId?: string;
}

export interface Turn {
  acquireRequestId?: string;
  acquiredBy?: string;
  acquiredByKeyId?: string;
  acquiredFrom?: string;
  agentId?: string;
  binding?: string;
  boundWorkItemId?: string;
  endReason?: string;
  endedAt?: string;
  interjectedMessageIds?: string[];
  leaseExpiresAt?: string;
  leaseGeneration?: string;
  messageId?: string;
  mutations?: number;
  rounds?: number;
  runId?: string;
  runnerId?: string;
  shownWaits?: ShownWait[];
  startedAt?: string;
  state?: string;
  traceparent?: string;
  turnId: string;
  workItemId?: string;
}

export interface ToolCall {
  arguments?: Record<string, unknown>;
  callId: string;
  name: string;
}

export interface ToolResult {
  callId: string;
  error?: ToolError;
  result?: Record<string, unknown>;
  status?: string;
  summaryText?: string;
  toolName?: string;
  warnings?: Record<string, unknown>[];
  workItemId?: string;
}

export interface Round {
  conversationSummary?: ConversationSummary;
  createdAt?: string;
  index?: number;
  localToolCalls?: ToolCall[];
  localToolResults?: ToolResult[];
  settled?: boolean;
  text?: string;
  toolCalls?: ToolCall[];
  toolResults?: ToolResult[];
  turnId: string;
  usage?: TokenUsage;
  workItemId?: string;
}

export interface Verdict {
  action?: string;
  decidedAt?: string;
  explanation?: string;
  factsRevision?: string;
  lastTurnId?: string;
  reason?: string;
  tickReason?: string;
  workItemId?: string;
  workItemRevision?: string;
}

export interface Explanation {
  agentId?: string;
  candidates?: Candidate[];
  facts?: Fact[];
  recent?: Verdict[];
  verdict?: Verdict;
}

export interface Fact {
  name: string;
  value?: string;
}

export interface Candidate {
  candidateClass?: string;
  chosen?: boolean;
  objective?: string;
  reasonCode?: string;
  revision?: string;
  schedulingState?: string;
  waitingFor?: string;
  why?: string;
  workItemId: string;
}

export interface Trigger {
  agentId?: string;
  coalescedCount?: string;
  createdAt?: string;
  deliveryCount?: string;
  deliveryMode?: string;
  description?: string;
  expiresAt?: string;
  generation?: string;
  ignoredCount?: string;
  installationKeyId?: string;
  lastDeliveredAt?: string;
  revision?: string;
  rotatedAt?: string;
  sealedSigningSecret?: string;
  signatureScheme?: string;
  status?: string;
  tokenHash?: string;
  triggerId: string;
  workItemId?: string;
}

export interface Timer {
  agentId?: string;
  count?: string;
  createdAt?: string;
  description?: string;
  every?: string;
  fireCount?: string;
  lastFiredAt?: string;
  nextFireAt?: string;
  revision?: string;
  skippedCount?: string;
  startAt?: string;
  status?: string;
  timerId: string;
  workItemId?: string;
}

export interface Task {
  acceptsInputNow?: boolean;
  agentId?: string;
  blocking?: boolean;
  childAgentId?: string;
  command?: CommandSpec;
  createdAt?: string;
  delegationId?: string;
  endMessage?: string;
  endReason?: string;
  endedAt?: string;
  exitCode?: number;
  kind?: string;
  label?: string;
  leaseGeneration?: string;
  outputBytes?: string;
  outputTruncated?: boolean;
  pinnedSharedWorker?: boolean;
  pinnedWorkerId?: string;
  queueMessage?: string;
  queueReason?: string;
  restarts?: number;
  revision?: string;
  startedAt?: string;
  state?: string;
  taskId: string;
  terminal?: boolean;
  traceparent?: string;
  turnId?: string;
  workItemId?: string;
  workerBootId?: string;
  workerId?: string;
  worktree?: Worktree;
}

export interface Delegation {
  childAgentId?: string;
  childWorkItemId?: string;
  completedAt?: string;
  createdAt?: string;
  delegationId: string;
  label?: string;
  outcome?: string;
  parentAgentId?: string;
  parentWorkItemId?: string;
  questions?: ChildQuestion[];
  resultSummary?: string;
  state?: string;
  stopRequested?: boolean;
  taskId?: string;
  worktree?: Worktree;
}

export interface ChildQuestion {
  askedAt?: string;
  text?: string;
  waitId: string;
}

export interface Brief {
  agentId?: string;
  briefId: string;
  createdAt?: string;
  kind?: string;
  text?: string;
  turnId?: string;
  workItemId?: string;
}

export interface QuartetEvent {
  actorAgentId?: string;
  actorKeyId?: string;
  actorRunId?: string;
  agentId?: string;
  createdAt?: string;
  cursor: string;
  eventId: string;
  eventType: string;
  namespace?: string;
  payload?: Record<string, unknown>;
  plane: string;
  principal?: string;
  readinessFrom?: string;
  readinessReason?: string;
  readinessTo?: string;
  requestId?: string;
  sessionId?: string;
  stepId?: string;
  taskId?: string;
  traceparent?: string;
  walSeq?: string;
  workItemId?: string;
}

export interface Step {
  artifactIds?: string[];
  claimedByAgentId?: string;
  claimedByRunId?: string;
  createdAt?: string;
  dependsOnStepIds?: string[];
  leaseExpiresAt?: string;
  reason?: string;
  required?: boolean;
  resultSummary?: string;
  status?: string;
  stepId: string;
  summary?: string;
  title?: string;
  updatedAt?: string;
  workerPoolId?: string;
}

export interface Board {
  boardId: string;
  counts?: StepCounts;
  createdAt?: string;
  createdByAgentId?: string;
  createdByRunId?: string;
  defaultWorkerPoolId?: string;
  diagnostics?: Diagnostics;
  reason?: string;
  revision?: string;
  rootStepIds?: string[];
  sessionId: string;
  status?: string;
  steps?: Step[];
  summary?: string;
  terminating?: boolean;
  title?: string;
  updatedAt?: string;
  walName?: string;
  walPath?: string;
}

export interface WorkerRun {
  allowedStepIds?: string[];
  allowedTools?: string[];
  boardId?: string;
  cancelling?: boolean;
  claimedStep?: Step;
  claimedStepId?: string;
  context?: string;
  deadlineAt?: string;
  dispatchId?: string;
  dispatchedAt?: string;
  endReason?: string;
  endedAt?: string;
  instruction?: string;
  noStepClaimed?: boolean;
  runId: string;
  sessionId?: string;
  status?: string;
  stepResultSummary?: string;
  stepStatus?: string;
  workerId?: string;
  workerPoolId?: string;
  workerResult?: string;
}

export interface Dispatch {
  allowedStepIds?: string[];
  boardId?: string;
  dispatchId: string;
  instruction?: string;
  maxParallel?: number;
  open?: boolean;
  openedAt?: string;
  running?: number;
  sessionId?: string;
  stepTimeout?: string;
  workerPoolId?: string;
}

export interface BoardWorker {
  capacity?: number;
  connectedAt?: string;
  labels?: Record<string, string>;
  runIds?: string[];
  workerId: string;
  workerPoolIds?: string[];
}

export interface Key {
  agentId?: string;
  agentIds?: string[];
  createdAt?: string;
  createdBy?: string;
  expiresAt?: string;
  installationKeyId?: string;
  keyId: string;
  lastUsedAt?: string;
  name?: string;
  namespace?: string;
  revision?: string;
  revokedAt?: string;
  revokedBy?: string;
  role?: string;
  status?: string;
  tools?: string[];
}

export interface Process {
  activeInstallationKeyId?: string;
  address?: string;
  answer?: string;
  certificateName?: string;
  damage?: string[];
  held?: HeldPartition[];
  host?: string;
  installationKeyIds?: string[];
  notReady?: string[];
  processId: string;
  removalFailures?: string[];
  reportedAt?: string;
  services?: string[];
  startedAt?: string;
  version?: string;
  warning?: string;
}

export interface Installation {
  journals?: JournalUsage[];
  planes?: PlaneHealth[];
  problems?: InstallationProblem[];
  processes?: Process[];
  publishers?: PublisherLag[];
  storeFullIn?: string;
  storeLimitBytes?: string;
  storeUsedBytes?: string;
  streams?: StreamUsage[];
}

export interface WhoAmI {
  agentId?: string;
  agentIds?: string[];
  namespace?: string;
  principal?: string;
  role?: string;
  runId?: string;
  serverTime?: string;
  serverVersion?: string;
  tools?: string[];
}

export interface Utterance {
  createdAt?: string;
  messageId?: string;
  roundIndex?: number;
  speaker?: string;
  text?: string;
  turnId?: string;
  workItemId?: string;
}

export interface Lane {
  dequeued?: number;
  quarantined?: number;
  queued?: number;
  queuedBytes?: string;
}

export interface Worktree {
  baseCommit?: string;
  branch?: string;
  path?: string;
  reason?: string;
  repository?: string;
  sharedWorker?: boolean;
  state?: string;
  workerId?: string;
}

export interface PlanArtifact {
  bytes?: string;
  path?: string;
  preview?: string;
  previewComplete?: boolean;
  problem?: string;
  sha256?: string;
  updatedAt?: string;
}

export interface Resumption {
  at?: string;
  cause?: string;
  causeId?: string;
  wait?: AttachedWait;
}

export interface AttachedWait {
  condition?: string;
  consumedCount?: string;
  createdAt?: string;
  kind?: string;
  lastTriggeredAt?: string;
  mode?: string;
  reason?: string;
  recheckAt?: string;
  recheckConsumedAt?: string;
  replacesWaitId?: string;
  resource?: string;
  resourceDescription?: string;
  revision?: string;
  source?: string;
  triggerCount?: string;
  waitId?: string;
}

export interface WorkQueueCounts {
  blocked?: number;
  completed?: number;
  open?: number;
  queuedRunnable?: number;
  triggeredBlocked?: number;
  waitingForOperator?: number;
}

export interface Tick {
  lastTurnId?: string;
  reason?: string;
  revision?: string;
  workItemId?: string;
}

export interface ShownWait {
  triggerCount?: string;
  waitId?: string;
}

export interface ToolError {
  details?: Record<string, unknown>;
  kind?: string;
  message?: string;
  recoveryHint?: string;
  retryable?: boolean;
}

export interface ConversationSummary {
  text?: string;
  throughTurnId?: string;
}

export interface TokenUsage {
  inputTokens?: string;
  outputTokens?: string;
}

export interface Verdict {
  action?: string;
  decidedAt?: string;
  explanation?: string;
  reason?: string;
  tickReason?: string;
  workItemId?: string;
  workItemRevision?: string;
}

export interface CommandSpec {
  acceptsInput?: boolean;
  argv?: string[];
  cmd?: string;
  env?: Record<string, string>;
  limits?: CommandLimits;
  pool?: string;
  restartPolicy?: string;
  timeout?: string;
  tty?: boolean;
  workdir?: string;
  workerLabels?: Record<string, string>;
}

export interface StepCounts {
  blocked?: number;
  cancelled?: number;
  claimed?: number;
  completed?: number;
  failed?: number;
  pending?: number;
  ready?: number;
  running?: number;
}

export interface Diagnostics {
  completeable?: boolean;
  notCompleteableByStepIds?: string[];
  stalled?: boolean;
  stalledByStepIds?: string[];
}

export interface HeldPartition {
  consumed?: ConsumedSource[];
  partition?: number;
  plane?: string;
}

export interface JournalUsage {
  archiveProblem?: string;
  archivedBytes?: string;
  archivedFrameBytes?: string;
  archivedSegments?: number;
  bytes?: string;
  partition?: number;
  plane?: string;
  segments?: number;
  snapshotAt?: string;
  snapshotBytes?: string;
}

export interface PlaneHealth {
  name?: string;
  partitions?: number;
  processIds?: string[];
  up?: boolean;
}

export interface InstallationProblem {
  down?: boolean;
  plane?: string;
  remedy?: string;
  text?: string;
}

export interface PublisherLag {
  behind?: string;
  frames?: string;
  partition?: number;
  plane?: string;
}

export interface StreamUsage {
  bytes?: string;
  maxBytes?: string;
  messages?: string;
  name?: string;
}

export interface CommandLimits {
  memoryBytes?: string;
  outputBytes?: string;
  processes?: number;
}

export interface ConsumedSource {
  partition?: number;
  plane?: string;
  walSeq?: string;
}

package mcp

// instructions tell a model how to use the tools. Hosts put them into its context.
const instructions = `Quartet is your durable memory. What you put here survives compaction, restarts and other sessions; your context does not.

At the start of a session, and after a compaction:
1. ListWorkItems with filter open: the objectives and the state of each. Read the plan of the item that you continue (HomeRead work-items/<id>/plan.md, or the plan resource). The objective names the work, the plan interprets it and wins conflicts, todos are progress.
2. PickWorkItem for the one you work on. One item is in focus at a time; give a reason when you leave one that is runnable.

For new work: CreateWorkItem once per independent objective, with plan_status ready when you know what to do, then PickWorkItem. Write what you decide and why into its plan file with HomeWrite and HomeEdit. Do not create an item for a step; steps are todos.

While you work: UpdateWorkItem with the whole todo_list, done ones included, whenever a step is done; one entry in_progress. Do it before you start the next step, not at the end.

When it is done: CompleteWorkItem with report. The report is all that others will read about it: what was done, how it was verified, what is left. Completed items never change again.

When you cannot continue: WaitFor with a reason and wake operator_input, task_result, external or timer. The item is then shown as waiting, and you pick another one. This conversation continues. For an outside system create a URL with CreateExternalTrigger and wait for its id as resource. When you have handled the deliveries, clear the blocker: UpdateWorkItem with blocked_by null.

Long commands: ExecCommand runs on a worker of Quartet and continues after this session; a command that takes longer than yield_time becomes a task that TaskOutput and TaskStatus follow.

Errors say what is wrong and how to fix it.`

// memoryInstructions are the instructions for the set memory.
const memoryInstructions = `Quartet is your durable memory. What you put here survives compaction, restarts and other sessions; your context does not.

At the start of a session and after a compaction: ListWorkItems with filter open, then HomeRead the plan of the item that you continue (work-items/<work_item_id>/plan.md), then PickWorkItem. The objective names the work, the plan interprets it and wins conflicts, todos are progress.

New work: CreateWorkItem once per independent objective, then PickWorkItem. Write what you decide and why into the plan file with HomeWrite and HomeEdit. A step is a todo, not an item.

While you work: UpdateWorkItem with the whole todo_list, done ones included, after each step, before you start the next one.

Done: CompleteWorkItem with report, which is all that others will read about it. Cannot continue: WaitFor with a reason, then pick another item. What people answer is shown with ListWorkItems and GetWorkItem. When what it waited for has happened and is handled, UpdateWorkItem with blocked_by null.

Errors say what is wrong and how to fix it.`

// instructionsOf returns the instructions for a set of tools. absent says that no server could be
// reached and how to start one; it is empty if one was.
func instructionsOf(set, absent string) string {
	text := instructions
	if set == MemoryTools {
		text = memoryInstructions
	}
	if absent != "" {
		text = absent + " Its tools appear in this session as soon as a server runs; until then there are none. Tell " +
			"the user.\n\n" + text
	}
	return text
}

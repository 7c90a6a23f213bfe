package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

var mutantsFlag = flag.String("mutants", "", "run the mutants whose names match; .* for all")

// mutant is a defect that is planted: in a file, one text is replaced by another. The list was written before the
// simulator was tuned.
type mutant struct {
	name     string
	file     string
	old, new string
}

// pattern matches the old text, whatever white space separates its words, so that a formatter does not invalidate it.
func (m mutant) pattern() *regexp.Regexp {
	words := strings.Fields(m.old)
	for i, word := range words {
		words[i] = regexp.QuoteMeta(word)
	}
	text := strings.Join(words, `\s+`)
	if strings.HasPrefix(m.old, "\t") {
		text = `\t+` + text
	}
	if strings.HasSuffix(m.old, "\n") {
		text += `\n`
	}
	return regexp.MustCompile(text)
}

var mutants = []mutant{
	{
		"the position is not stored with its effect", "pkg/journal/consume.go",
		"		p.writePosition(c, f, in.key, in.end, in.end.Seq, wholeFrame)\n", "",
	},
	{
		"a command is answered before its frame is stored", "pkg/journal/execute.go",
		"	f.cmds = append(f.cmds, c)\n	c.events, c.stored, c.seq = events, true, events[len(events)-1].WalSeq\n",
		"	c.events, c.stored, c.seq = events, true, events[len(events)-1].WalSeq\n	p.complete(c)\n",
	},
	{
		"a read shows what is not stored", "pkg/journal/command.go",
		"if result != nil && (result.Hidden() || ctx.Value(aheadKey{}) != any(p)) {",
		"if result != nil && result.Hidden() {",
	},
	{
		"the request memory is not loaded", "pkg/journal/core.go",
		"		c.restoreRequest(ev, awaiting)\n", "",
	},
	{
		"a request is not remembered", "pkg/journal/execute.go",
		"		p.core.memory.Add(c.key, requests.Entry{\n", "		_ = (requests.Entry{\n",
	},
	{
		"an append without an answer counts as refused", "pkg/journal/framelog/writer.go",
		"			clean = false\n			w.Logger.Warn(", "			return Result{Outcome: Refused, Err: " +
			"err}\n			w.Logger.Warn(",
	},
	{
		"the frame of another writer counts as a fence", "pkg/journal/framelog/writer.go",
		"			case !fence:\n				v.Foreign = true\n",
		"			case !fence && seq == 0:\n				v.Foreign = true\n",
	},
	{
		"a new writer keeps the generation", "pkg/journal/load.go",
		"	generation := c.generation + 1\n", "	generation := max(c.generation, 1)\n",
	},
	{
		"a refused write is answered as stored", "pkg/journal/room.go",
		"		c.err = unavailable(outcomeNone, \"the journal refused the write\", v.Err)\n", "",
	},
	{
		"a consumption passes over one that was lost", "pkg/journal/consume.go",
		"	case !in.follows(pos):\n", "	case !in.follows(pos) && pos == nil:\n",
	},
	{
		"what came of no effect is consumed again with a newer state", "pkg/journal/consume.go",
		"pos.needsWrite {\n			p.writePosition(", "pos.needsWrite && pos.line > 0 " +
			"{\n			p.writePosition(",
	},
	{
		"after a reload memory is kept", "pkg/journal/loop.go",
		"	p.core, p.uncommitted = core, nil\n",
		"	core.state, p.uncommitted = p.core.state, nil\n	p.core = core\n",
	},
	{
		"a follower stops at its first error", "pkg/plane/plane.go",
		"		log.Warn(\"following is interrupted and continues\", zap.Error(err))\n", "		return\n",
	},
	{
		"the term of a lease is compared the wrong way", "pkg/leasetable/leasetable.go",
		"	return !l.expires.After(now), false\n", "	return l.expires.After(now), false\n",
	},
	{
		"a turn begins while another one is open", "services/agent/turns/acquire.go",
		"	if !a.CanTakeTurn() || a.Lane.Head().GetMessageId() != turn.GetMessageId() {\n",
		"	if a.Lane.Head().GetMessageId() != turn.GetMessageId() {\n",
	},
	{
		"a repeated AcquireTurn gets another turn", "services/agent/turns/acquire.go",
		"		if acquired {\n			return none, errRepeated", "		if acquired && turn == nil {\n			return none, errRepeated",
	},
	{
		"the message of a lost turn is not queued again", "services/agent/turns/expire.go",
		"TURN_END_REASON_LEASE_LOST, Requeue: true,\n", "TURN_END_REASON_LEASE_LOST,\n",
	},
	{
		"open turns get no lease at a start", "services/agent/service.go",
		"		s.leases.Arm(k, st.Lookup(k).OpenTurn.Record.GetRunId())\n", "		_ = k\n",
	},
	{
		"a tick rests on old facts", "services/agent/facts/decisions.go",
		"	case a.FactsRevision != req.GetFactsRevision(),\n", "	case a.FactsRevision < req.GetFactsRevision(),\n",
	},
	{
		"a tick rests on facts that were lost", "services/agent/facts/decisions.go",
		"req.GetLoadId() != string(s.LoadID),\n", "req.GetLoadId() == \"\",\n",
	},
	{
		"waits are not due after a start", "services/waiting/fire.go",
		"			s.indexWait(k.Namespace, w)\n			if a.unpublished(w) {",
		"			if a.unpublished(w) {",
	},
	{
		"timers are not due after a start", "services/waiting/fire.go",
		"			s.indexTimer(k.Namespace, t)\n", "			_ = t\n",
	},
	{
		"what is due is compared the wrong way", "services/waiting/fire.go",
		"		if timestamp.AsTime().After(env.Now) {\n", "		if timestamp.AsTime().Before(env.Now) {\n",
	},
	{
		"a delivery is counted again when it is repeated", "services/waiting/deliver_trigger.go",
		"RequestID: same.GetRequestId(), Args: same,", "Args: same,",
	},
	{
		"the waits of a completed item go on", "services/waiting/consume.go",
		"		return a.itemCompleted(env, k, ev.WorkItemID)\n", "		return nil\n",
	},
	{
		"the wait of a cleared blocker goes on", "services/waiting/consume.go",
		"		return a.cancel(env, k, p.GetEndedWaitId(), " +
			"waitingv1.WaitEndReason_WAIT_END_REASON_BLOCKER_CLEARED)\n", "		_ = p\n		return nil\n",
	},
	{
		"a wait that was refused by its item goes on", "services/waiting/consume.go",
		"		return a.cancel(env, k, p.GetWaitId(), waitingv1.WaitEndReason_WAIT_END_REASON_ATTACH_REFUSED)\n",
		"		_ = p\n		return nil\n",
	},
	{
		"a wait is attached after its end", "services/work/attach_wait.go",
		"(s.hasEnded(namespace, agentID, w.GetWaitId()) || superseded(old, w)) {", "superseded(old, w) {",
	},
	{
		"an older revision of a wait replaces a newer one", "services/work/attach_wait.go",
		"	if known != nil && known.GetRevision() >= w.GetRevision() {\n",
		"	if known != nil && known.GetRevision() == w.GetRevision() {\n",
	},
	{
		"items learn of waits by a call only", "services/work/consume.go",
		"var waitTypes = []string{\"wait_registered\", ", "var waitTypes = []string{",
	},
	{
		"changes of readiness mark no agent", "services/scheduler/listen.go",
		"	return ev.ReadinessFrom != ev.ReadinessTo\n", "	return false\n",
	},
}

// later are defects of what the simulator has run since.
var later = []mutant{
	{
		"what changes in an agent that is not in memory is lost", "pkg/resident/map.go",
		"	m.forget(k, e.place)\n	m.add(k, v)\n	return v\n", "	return v\n",
	},
	{
		"a lease has no end", "pkg/lease/keeper.go",
		"	return !o.dead.Load() && int64(k.cfg.Elapsed()) < o.until.Load()\n", "	return !o.dead.Load()\n",
	},
	{
		"a partition is taken although another instance has it", "pkg/lease/group.go",
		"mine && (holders[n] == \"\" || holders[n] == k.own.id) && now", "mine && now",
	},
	{
		"a session is deleted while it is renewed", "pkg/lease/keeper.go",
		"func (k *Keeper) expiry() time.Duration     { return k.cfg.Term * 8 / 10 }\n",
		"func (k *Keeper) expiry() time.Duration     { return k.cfg.Term * 4 / 10 }\n",
	},
	{
		"a call that may be executed is called undone", "pkg/rpc/route.go",
		"		return e.With(outcomeKey, \"unknown\")\n", "		return e\n",
	},
	{
		"a window that was not acknowledged counts as copied", "pkg/bus/publisher.go",
		"			copied = copied || err == nil\n", "			copied, err = copied || err == nil, nil\n",
	},
	{
		"a publisher begins behind what it has not copied", "pkg/bus/publisher.go",
		"	after, err := out.Position(ctx, positionSubject(p.cfg.Source))\n",
		"	after, err := p.cfg.Source.End(ctx)\n",
	},
	{
		"a segment is dropped that is not in the catalog", "pkg/journal/archive/archiver.go",
		"			case c.Has(seg.Number):\n", "			case c.Has(seg.Number) || seg.Number < allowed.Segment:\n",
	},
	{
		"a reader passes over what is archived", "pkg/journal/archive/log.go",
		"			if err := l.scanArchive(ctx, from, pass); err != nil {\n				return err\n			}\n",
		"			from = c.End().Seq + 1\n",
	},
	{
		"a segment counts as archived although its catalog was not stored", "pkg/journal/archive/write.go",
		"	if err := c.replace(ctx, store, segments); err != nil {\n		return nil, err\n	}\n	return Read(ctx, " +
			"" +
			"store, " +
			"c.Partition)\n",
		"	_ = c.replace(ctx, store, segments)\n	return &Catalog{Partition: c.Partition, Segments: segments, version: " +
			"c.version}, nil\n",
	},
	{
		"a command whose worker was lost is executed again whatever its policy", "services/task/rules/end.go",
		"		t.GetCommand().GetRestartPolicy() == taskv1.RestartPolicy_RESTART_POLICY_ON_WORKER_LOSS\n",
		"		t.GetCommand() != nil\n",
	},
	{
		"output that was not stored is acknowledged", "services/task/workers/report.go",
		"	if err != nil {\n		return err\n	}\n	raise(&c.outputEnd, end)\n",
		"	if err != nil {\n		end = output.ChunkEnd(chunk)\n	}\n	raise(&c.outputEnd, end)\n",
	},
	{
		"a stream goes on behind a report that could not be stored", "services/task/workers/report.go",
		"		if err := s.handle(m); err != nil {\n			s.End(err)\n		}\n", "		_ = s.handle(m)\n",
	},
	{
		"a new process of a worker gets the commands of the one before", "services/task/workers/session.go",
		"		case t.Task.GetWorkerBootId() != s.Hello.BootID:\n",
		"		case t.Task.GetWorkerBootId() == \"\":\n",
	},
	{
		"a report under an earlier lease counts", "services/task/workers/report.go",
		"c.worker != s.worker() || c.generation != r.GetLeaseGeneration() {", "c.worker != s.worker() {",
	},
	{
		"a step is ready before what it depends on is completed", "services/board/rules/transition.go",
		"f.Status(s) == model.StepPending && f.openDependencies(s) == 0 {",
		"f.Status(s) == model.StepPending && f.openDependencies(s) <= 1 {",
	},
	{
		"a report that is acknowledged is not stored", "services/board/rules/batch.go",
		"		if repeated(r, rep) {\n", "		if repeated(r, rep) || rep.GetStatus() == model.StepCompleted {\n",
	},
	{
		"workers are not told of steps that become ready", "services/board/workers/workers.go",
		"		case *boardv1.TaskStepReady, *boardv1.StandingDispatchOpened, *boardv1.TaskReopened:\n			claimable = " +
			"true\n", "		case *boardv1.StandingDispatchOpened:\n			claimable = true\n",
	},
	{
		"a board that is being ended is forgotten by a start", "services/board/service.go",
		"				s.endings.Set(endingKey(b.Key), s.deps.Clock.Now().Add(s.cfg.CancelWait))\n",
		"				_ = endingKey(b.Key)\n",
	},
	{
		"an item whose plan needs input is runnable", "services/work/derive/readiness.go",
		"	if it.GetPlanStatus() == workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT {\n", "	if it.GetPlanStatus() < 0 {\n",
	},
	{
		"queued items are ranked by their last write, newest first", "services/work/order.go",
		"	workv1.CandidateClass_CANDIDATE_CLASS_QUEUED_RUNNABLE: byResumption,\n",
		"	workv1.CandidateClass_CANDIDATE_CLASS_QUEUED_RUNNABLE: byUpdateNewest,\n",
	},
	{
		"a tick is taken before a prompt", "services/agent/lane/lane.go",
		"	for last >= 0 && band[last].GetKind() != agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT {\n",
		"	for last >= 0 {\n",
	},
	{
		"a tick to choose an item binds the focus", "services/agent/projection/read.go",
		"	if tick.GetReason() == agentv1.TickReason_TICK_REASON_PICK_QUEUED {\n",
		"	if tick == nil && tick.GetReason() == agentv1.TickReason_TICK_REASON_PICK_QUEUED {\n",
	},
	{
		"an update that changes nothing is stored", "services/work/update_work_item.go",
		"	if sameContent(it, old, env) {\n", "	if sameContent(it, old, env) && req.GetAgentId() == \"\" {\n",
	},
	{
		"each failed attempt counts as one with progress", "services/agent/state/turn_end.go",
		"!how.Uncounted && a.OpenTurn.Progressed && m.GetProgressedAttempts()",
		"!how.Uncounted && m.GetProgressedAttempts()",
	},
	{
		"a stale tick counts in a posture", "services/agent/directory/directory.go",
		"derivePosture(rec, lane.counts, stale != \"\", queue,",
		"derivePosture(rec, lane.counts, stale == \"?\", queue,",
	},
	{
		"the brief of a report has another text", "services/agent/state/briefs.go",
		"agentv1.BriefKind_BRIEF_KIND_RESULT, p.GetBriefId(), p.GetText(), p.GetWorkItem().",
		"agentv1.BriefKind_BRIEF_KIND_RESULT, p.GetBriefId(), p.GetTurnId(), p.GetWorkItem().",
	},
}

// TestMutants_AreCurrent checks that each mutant still replaces one text of the code.
func TestMutants_AreCurrent(t *testing.T) {
	require.Len(t, mutants, 31)
	names := map[string]bool{}
	for _, m := range slices.Concat(mutants, later) {
		require.False(t, names[m.name], "two mutants are named %q", m.name)
		names[m.name] = true
		text := must.Value(os.ReadFile(filepath.Join(root, m.file)))(t)
		require.Len(t, m.pattern().FindAllIndex(text, 2), 1, "%q: %s must have this text once: "+
			"%s", m.name, m.file, m.old)
		require.NotEqual(t, m.old, m.new)
	}
}

var mostFlag = flag.Duration("most", 10*time.Minute, "how long to look for each mutant")

// foundBy matches what a failing run says.
var foundBy = regexp.MustCompile(`seed (\d+) failed by (\S[^:]*): (.*)`)

// TestMutants builds the simulator with each mutant, whose name matches -mutants, and runs it until an oracle objects.
func TestMutants(t *testing.T) {
	if *mutantsFlag == "" {
		t.Log("run it with make mutants")
		return
	}
	names := regexp.MustCompile(*mutantsFlag)
	found, ran := 0, 0
	for _, m := range slices.Concat(mutants, later) {
		if !names.MatchString(m.name) {
			continue
		}
		ran++
		began := time.Now()
		by := look(t, m)
		if by != "" {
			found++
		} else {
			by = "NOT FOUND"
		}
		fmt.Printf("%-62s %6s  %s\n", m.name, time.Since(began).Round(time.Second), by)
	}
	t.Logf("%d of %d found", found, ran)
	require.GreaterOrEqual(t, found, ran-1)
}

// look runs seeds with one mutant and returns what found it, "" if nothing did.
func look(t *testing.T, m mutant) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(root, m.file)
	text := must.Value(os.ReadFile(path))(t)
	mutated := filepath.Join(dir, "mutated.go")
	require.NoError(t, os.WriteFile(mutated, m.pattern().ReplaceAllLiteral(text, []byte(m.new)), 0o600))
	overlay := must.Value(json.Marshal(map[string]map[string]string{"Replace": {path: mutated}}))(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	binary := filepath.Join(dir, "sim.test")
	build := exec.Command("go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary,
		"./tests/sim")
	build.Dir = root
	out, err := build.CombinedOutput()
	if err != nil {
		t.Errorf("%s does not compile: %s", m.name, out)
		return ""
	}
	run := exec.Command(binary, "-test.run", "^TestSim$", "-test.timeout", mostFlag.String(), "-seed",
		fmt.Sprint(*seedFlag), "-seeds", "100000")
	run.Dir = filepath.Join(root, "tests", "sim")
	out, _ = run.CombinedOutput() // it fails if it finds something
	if by := foundBy.FindStringSubmatch(string(out)); by != nil {
		return fmt.Sprintf("seed %s, %s: %.110s", by[1], by[2], by[3])
	}
	if strings.Contains(string(out), "panic: test timed out") || strings.Contains(string(out), "\nPASS") {
		return ""
	}
	return "the run broke: " + tail(string(out))
}

// tail returns the first line of a panic, or the end of a text.
func tail(s string) string {
	if i := strings.Index(s, "panic: "); i >= 0 {
		s = s[i:]
		if j := strings.IndexByte(s, '\n'); j > 0 {
			return s[:min(j, 110)]
		}
	}
	return s[max(0, len(s)-110):]
}

package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"

	"quartet/pkg/fault"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// StatusCommand returns `quartet status`.
func StatusCommand(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show whether every plane of the installation is served, and by whom", Args: input.None,
		Long: `Ask all processes of the installation whether they can serve, and show its planes and
other services, its processes with the partitions that they hold, its streams, how far
EVENTS is behind the journal of each partition, and what each journal takes: its
segments that are streams, how old its newest snapshot is, and what is archived.
The exit code is 1 if a plane is down, a process does not answer, a journal is damaged
or the store is nearly full; the error says which, and what to do. The call is
answered by the identity plane, and needs a key of role installation_admin or admin.`,
		Example: "  quartet status\n  quartet status -o json | jq '.problems'",
		RunE: s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
			resp, err := identityv1.NewIdentityServiceClient(conn).ListProcesses(cmd.Context(),
				&identityv1.ListProcessesRequest{Examine: true})
			if err != nil {
				return withoutIdentity(cmd.Context(), conn, err)
			}
			if err := s.Show(cmd, resp, func(p *output.Printer) { showStatus(p, resp) }); err != nil ||
				len(resp.GetProblems()) == 0 {
				return err
			}
			return problemsOf(resp)
		}),
	}
}

// withoutIdentity returns err, or, if err is UNAVAILABLE or DEADLINE_EXCEEDED and the server's health check answers
// within 2 s, an error that says that identity does not answer. That error does not wrap err.
func withoutIdentity(ctx context.Context, conn grpc.ClientConnInterface, err error) error {
	if f := fault.From(err); f.Code() != codes.Unavailable && f.Code() != codes.DeadlineExceeded {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, dead := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}); dead != nil {
		return err
	}
	return fmt.Errorf("identity is down, and without it nobody tells about the other planes: %s\n  fix: start a "+
		"process that serves it: `quartet serve identity …` with the nats-url of the others",
		terminal.Printable(fault.From(err).Message()))
}

// problemsOf returns the problems as one error.
func problemsOf(resp *identityv1.ListProcessesResponse) error {
	var lines []string
	for _, p := range resp.GetProblems() {
		lines = append(lines, terminal.Printable(p.GetText())+"\n  fix: "+terminal.Printable(p.GetRemedy()))
	}
	return errors.New(strings.Join(lines, "\n"))
}

// showStatus prints the tables.
func showStatus(p *output.Printer, resp *identityv1.ListProcessesResponse) {
	var rows [][]string
	for _, plane := range resp.GetPlanes() {
		state := p.Paint(terminal.Green, "up")
		if !plane.GetUp() {
			state = p.Paint(terminal.Red, "down")
		}
		partitions := ""
		if plane.GetPartitions() > 0 {
			partitions = fmt.Sprint(plane.GetPartitions())
		}
		rows = append(rows, []string{plane.GetName(), state, fmt.Sprint(len(plane.GetProcessIds())), partitions})
	}
	p.Table("no planes", []string{"PLANE", "STATE", "PROCESSES", "PARTITIONS"}, rows)
	p.Printf("\n")
	rows = nil
	answers := map[identityv1.ProcessAnswer]string{
		identityv1.ProcessAnswer_PROCESS_ANSWER_READY:     p.Paint(terminal.Green, "ready"),
		identityv1.ProcessAnswer_PROCESS_ANSWER_NOT_READY: p.Paint(terminal.Yellow, "not ready"),
		identityv1.ProcessAnswer_PROCESS_ANSWER_NONE:      p.Paint(terminal.Red, "no answer"),
	}
	for _, x := range resp.GetProcesses() {
		rows = append(rows, []string{
			x.GetProcessId(), x.GetHost(), x.GetAddress(), x.GetVersion(),
			answers[x.GetAnswer()], strings.Join(x.GetServices(), " "), heldText(x),
		})
	}
	p.Table("no process has reported itself", []string{
		"PROCESS", "HOST", "ADDRESS", "VERSION", "ANSWER", "SERVICES",
		"HOLDS",
	}, rows)
	p.Printf("\n")
	rows = nil
	for _, st := range resp.GetStreams() {
		if len(resp.GetJournals()) > 0 && ofJournal(st.GetName()) {
			continue // they are in the lines of their journals
		}
		most := ""
		if st.GetMaxBytes() > 0 {
			most = fmt.Sprintf("%d MiB", st.GetMaxBytes()>>20)
		}
		rows = append(rows, []string{
			st.GetName(), fmt.Sprint(st.GetMessages()),
			fmt.Sprintf("%.1f MiB", float64(st.GetBytes())/(1<<20)), most,
		})
	}
	p.Table("no streams", []string{"STREAM", "MESSAGES", "SIZE", "AT MOST"}, rows)
	if lags := resp.GetPublishers(); len(lags) > 0 {
		p.Printf("\n")
		rows = nil
		for _, l := range lags {
			rows = append(rows, []string{
				fmt.Sprintf("%s/%d", l.GetPlane(), l.GetPartition()),
				fmt.Sprint(l.GetFrames()), fmt.Sprintf("%.1f", l.GetBehind().AsDuration().Seconds()),
			})
		}
		p.Table("", []string{"EVENTS OF", "FRAMES BEHIND", "SECONDS BEHIND"}, rows)
	}
	if journals := resp.GetJournals(); len(journals) > 0 {
		p.Printf("\n")
		p.Table("", []string{"JOURNAL", "SEGMENTS", "SIZE", "SNAPSHOT", "ARCHIVED", "IN THE ARCHIVE"},
			journalRows(journals, time.Now()))
	}
	if limit := resp.GetStoreLimitBytes(); limit > 0 {
		p.Printf("\nstore: %d of %d MiB in use, %d %%", resp.GetStoreUsedBytes()>>20, limit>>20,
			resp.GetStoreUsedBytes()*100/limit)
		if in := resp.GetStoreFullIn().AsDuration(); in > 0 {
			p.Printf("; full in %s at the rate of the last hours", long(in))
		}
		p.Printf("\n")
	} else {
		p.Printf("\nstore: %d MiB in use; how much there is, the NATS servers do not tell\n",
			resp.GetStoreUsedBytes()>>20)
	}
}

// ofJournal reports whether a stream is a segment of a journal, or has the snapshots of one.
func ofJournal(stream string) bool {
	return slices.ContainsFunc([]string{"quartet-journal-", "quartet-snapshot-"},
		func(prefix string) bool { return strings.HasPrefix(stream, prefix) })
}

// journalRows returns a row for each journal.
func journalRows(journals []*identityv1.JournalUsage, now time.Time) (rows [][]string) {
	for _, u := range journals {
		snapshot, archived, size := "none", "", ""
		if u.GetSnapshotAt() != nil {
			snapshot = long(max(now.Sub(u.GetSnapshotAt().AsTime()), 0)) + " ago"
		}
		switch {
		case u.GetArchiveProblem() != "":
			archived = "cannot be read"
		case u.GetArchivedSegments() > 0:
			archived = fmt.Sprintf("%s, %.1f MiB", terminal.Count(u.GetArchivedSegments(), "segment", "segments"),
				float64(u.GetArchivedFrameBytes())/(1<<20))
			size = fmt.Sprintf("%.1f MiB", float64(u.GetArchivedBytes())/(1<<20))
		}
		rows = append(rows, []string{
			fmt.Sprintf("%s/%d", u.GetPlane(), u.GetPartition()), fmt.Sprint(u.GetSegments()),
			fmt.Sprintf("%.1f MiB", float64(u.GetBytes())/(1<<20)), snapshot, archived, size,
		})
	}
	return rows
}

// long returns a duration as people say it: in its largest unit.
func long(d time.Duration) string {
	for _, unit := range []struct {
		name string
		is   time.Duration
	}{{"days", 24 * time.Hour}, {"hours", time.Hour}, {"minutes", time.Minute}} {
		if n := d.Round(unit.is) / unit.is; n >= 2 {
			return fmt.Sprintf("%d %s", n, unit.name)
		}
	}
	return terminal.Count(d/time.Second, "second", "seconds")
}

// heldText lists the partitions that a process holds: agent work/0,3,5.
func heldText(x *identityv1.Process) string {
	var planes []string
	numbers := map[string][]string{}
	for _, h := range x.GetHeld() {
		if !slices.Contains(planes, h.GetPlane()) {
			planes = append(planes, h.GetPlane())
		}
		numbers[h.GetPlane()] = append(numbers[h.GetPlane()], fmt.Sprint(h.GetPartition()))
	}
	var out []string
	for _, plane := range planes {
		if n := numbers[plane]; len(n) == 1 && n[0] == "0" {
			out = append(out, plane)
		} else {
			out = append(out, plane+"/"+strings.Join(n, ","))
		}
	}
	return strings.Join(out, " ")
}

// Package attack attacks a server over loopback, as a caller without a credential or as a tenant with every role
// but admin, and measures what the server and another tenant of it have to bear. Tests and the benchmarks use it.
//
// An attacker is a process of its own: as goroutines of the process that measures, a thousand of them would make
// the measured caller wait for longer than the server does. It has the address Source.
package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
)

// Source is the address of attackers.
const Source = "127.0.0.2"

// variable makes a process that calls Main an attacker, as the JSON of a Spec says.
const variable = "QUARTET_ATTACK"

// Spec says who attacks. One of its fields is set.
type Spec struct {
	Stranger *Stranger
	Tenant   *Tenant
}

// Main attacks and does not return if Begin has started this process. Otherwise it does nothing. Programs that call
// Begin call it first.
func Main() {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	var s Spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err)
	}
	if s.Stranger != nil {
		s.Stranger.attack()
	} else {
		s.Tenant.attack()
	}
	select {}
}

// Attacker is a running attack.
type Attacker struct {
	cmd  *exec.Cmd
	said bytes.Buffer
}

// Begin starts this program once more, as an attacker. It ends with End or ctx.
func Begin(ctx context.Context, s Spec) (*Attacker, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	a := &Attacker{cmd: exec.CommandContext(ctx, exe)}
	a.cmd.Env = append(os.Environ(), variable+"="+string(text))
	a.cmd.Stderr = &a.said
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	return a, nil
}

// End ends the attack. It returns an error if the attacker has failed before. Further calls do nothing.
func (a *Attacker) End() error {
	if a.cmd == nil {
		return nil
	}
	_ = a.cmd.Process.Kill() // it may have failed and ended already
	_ = a.cmd.Wait()         // it was killed
	a.cmd = nil
	if a.said.Len() > 0 {
		return fmt.Errorf("the attacker failed: %s", a.said.String())
	}
	return nil
}

// dialer connects from Source.
func dialer() *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(Source)}}
}

// Pin makes a process, all its threads and the processes that it starts later run on some processors, such as "1" or
// "0-3". It returns an error where taskset is missing.
func Pin(ctx context.Context, pid int, processors string) error {
	out, err := exec.CommandContext(ctx, "taskset", "-a", "-p", "-c", processors, fmt.Sprint(pid)).CombinedOutput()
	if err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	return nil
}

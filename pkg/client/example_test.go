package client_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/client"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/app"
	"quartet/tests/dev"
)

// A runner: it takes the turns of its agent, lets a model (here: a few lines of
// code) say what to do, and gives the results back to it.
func ExampleClient_RunTurns() {
	addr, stop := server() // elsewhere: quartet dev
	defer stop()

	ctx := context.Background()
	c, err := client.Dial(addr)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	if _, err := c.Agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED, InitialMessage: "say hello to the world",
	}); err != nil {
		fmt.Println(err)
		return
	}

	err = c.RunTurns(ctx, client.RunnerOptions{Name: "example", AgentIDs: []string{"keeper"}, MaxTurns: 1},
		func(ctx context.Context, t *client.Turn) error {
			fmt.Println("asked to:", t.Message.GetText())
			hello, err := client.Call("call-1", "ExecCommand", map[string]any{"cmd": "echo hello, world"})
			if err != nil {
				return client.Fatal(err)
			}
			got, err := t.Round(ctx, client.Reply{Text: "I will.", Calls: []*agentv1.ToolCall{hello}})
			if err != nil {
				return err
			}
			output, _ := got.GetToolResults()[0].GetResult().AsMap()["output"].(string)
			fmt.Println("it said:", strings.TrimSpace(output))
			return nil
		})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// asked to: say hello to the world
	// it said: hello, world
}

// A worker: it runs commands in its own way; here it shouts them.
func ExampleClient_RunWorker() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := client.Dial("127.0.0.1:7481")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	err = c.RunWorker(ctx, client.WorkerOptions{ID: "shouter", Capacity: 2},
		func(_ context.Context, cmd *client.Command) error {
			_, err := io.WriteString(cmd.Stdout(), strings.ToUpper(cmd.Task.GetCommand().GetCmd())+"\n")
			return err
		})
	if err != nil {
		fmt.Println(err)
	}
}

// server runs Quartet in this process over a new directory.
func server() (addr string, stop func()) {
	dir, err := os.MkdirTemp("", "quartet-example-")
	if err != nil {
		panic(err)
	}
	cfg, err := dev.Config(filepath.Join(dir, "data"))
	if err != nil {
		panic(err)
	}
	if err := os.Mkdir(cfg.DataDir, 0o700); err != nil {
		panic(err)
	}
	a, err := app.New(cfg, zap.NewNop(), "example")
	if err == nil {
		err = a.Start(context.Background())
	}
	if err != nil {
		panic(err)
	}
	return cfg.GRPCAddr, func() {
		_ = a.Stop(context.Background())
		_ = os.RemoveAll(dir)
	}
}

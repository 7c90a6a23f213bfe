package datadir

import (
	"context"
	"math"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
)

const mib = 1 << 20

// TestX16_Warnings: from 70 and 85 % on the log says once that the store fills up, and whoever asks is told what to do.
func TestX16_Warnings(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	reg := prometheus.NewRegistry()
	used := int64(0)
	g := NewFillGauge(&framelog.Room{Remedy: "Raise max-store-mib"}, func(context.Context) (framelog.RoomState, error) {
		return framelog.RoomState{Used: used * mib, Limit: 1000 * mib}, nil
	}, zap.New(core), reg)
	for _, c := range []struct {
		used          int64
		level         zapcore.Level
		says, warning string
	}{
		{10, 0, "", ""},
		{700, zapcore.WarnLevel, "is filling up", "70 % full (700 of 1000 MiB). Raise max-store-mib"},
		{750, 0, "", "75 % full"},
		{850, zapcore.WarnLevel, "is filling up", "85 % full"},
		{951, zapcore.ErrorLevel, "new records are refused", "refused with STORAGE_FULL. Raise max-store-mib"},
		{860, zapcore.InfoLevel, "more room again", "86 % full"},
		{10, zapcore.InfoLevel, "more room again", ""},
	} {
		used = c.used
		g.Measure(t.Context())
		require.Equal(t, c.warning == "", g.Warning() == "", c)
		require.Contains(t, g.Warning(), c.warning)
		got := logs.TakeAll()
		if c.says == "" {
			require.Empty(t, got)
			continue
		}
		require.Len(t, got, 1, c)
		require.Equal(t, c.level, got[0].Level)
		require.Contains(t, got[0].Message, c.says)
	}
	g.room.SetRefusing(true) // whatever is measured
	g.Measure(t.Context())
	require.Contains(t, g.Warning(), "refuse to store more")
	require.Len(t, logs.TakeAll(), 1)
	g.room.SetRefusing(false)
	g.Measure(t.Context())
	require.Empty(t, g.Warning())
	families := must.Value(reg.Gather())(t)
	values := map[string]float64{}
	for _, f := range families {
		values[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	require.Equal(t, map[string]float64{
		"quartet_store_used_bytes": 10 * mib, "quartet_store_limit_bytes": 1000 * mib,
		"quartet_store_full_seconds": math.Inf(1),
	}, values)
}

// TestX16_WhatIsMeasured asks a real server.
func TestX16_WhatIsMeasured(t *testing.T) {
	server := must.Value(natsd.Start(natsd.Config{StoreDir: t.TempDir(), MaxStore: 64 * mib, Port: natsd.InProcess}))(t)
	t.Cleanup(server.Stop)
	nc := must.Value(server.Connect("test"))(t)
	t.Cleanup(nc.Close)
	js := must.Value(jetstream.New(nc))(t)
	must.Value(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "s", Subjects: []string{"s"}}))(t)
	for range 5 {
		must.Value(js.Publish(t.Context(), "s", make([]byte, mib)))(t)
	}
	for name, source := range map[string]FillSource{
		"embedded": EmbeddedFill(func() *natsd.Server { return server }, t.TempDir()),
		"account":  AccountFill(func() *nats.Conn { return nc }, 1),
	} {
		s := must.Value(source(t.Context()))(t, name)
		require.GreaterOrEqual(t, s.Used, int64(5*mib), name)
		require.Less(t, s.Used, int64(6*mib), name)
		if name == "embedded" {
			require.Equal(t, int64(64*mib), s.Limit)
		} else {
			require.Zero(t, s.Limit, "the account has no limit")
		}
	}
	must.Refuse(EmbeddedFill(func() *natsd.Server { return nil }, "")(t.Context()))(t, errNoUsage)
	must.Refuse(AccountFill(func() *nats.Conn { return nil }, 1)(t.Context()))(t, errNoUsage)
}

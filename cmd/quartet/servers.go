//go:build unix

package main

import (
	"context"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"quartet/pkg/conf"
	"quartet/pkg/natsd"
	"quartet/services/app"
	"quartet/services/cli"
	"quartet/services/cli/admin"
	"quartet/services/cli/workers"
	"quartet/services/doctor"
)

// servers returns the servers, clients and tools that the command line runs.
func servers() cli.Servers {
	var cfg app.Config
	var settings *conf.Set
	var config string
	run := func(ctx context.Context, services []string) error {
		if err := settings.Load(config); err != nil {
			return err
		}
		if cfg.SecretFiles = settings.SecretFiles(); settings.Origin("nats-url") == "file" &&
			natsd.Redact(cfg.NATSURL, cfg.NATSURL) != cfg.NATSURL {
			cfg.SecretFiles["config"] = config
		}
		cfg.Serve, cfg.WorkerGuard, cfg.WorkerConfiner = services, workers.GuardCommand(), workers.ConfineCommand()
		return app.Run(ctx, cfg)
	}
	s := clients()
	s.Flags = func(fs *pflag.FlagSet) {
		settings = cfg.Flags(fs)
		fs.StringVar(&config, "config", "",
			"YAML or JSON file with settings; flags and QUARTET_… variables override it")
	}
	s.Dev = func(ctx context.Context, _ *pflag.FlagSet) error {
		return run(ctx, nil)
	}
	s.Serve = func(ctx context.Context, services []string, _ *pflag.FlagSet) error {
		if len(services) == 1 && services[0] == "all" {
			services = nil
		}
		return run(ctx, services)
	}
	s.Restore = func(ctx context.Context, _ *pflag.FlagSet, b admin.Backup) (admin.Restored, error) {
		if err := settings.Load(config); err != nil {
			return admin.Restored{}, err
		}
		r, err := app.Restore(ctx, cfg, app.Backup(b))
		return admin.Restored(r), err
	}
	s.Verify = func(ctx context.Context, _ *pflag.FlagSet) (admin.Verified, error) {
		if err := settings.Load(config); err != nil {
			return admin.Verified{}, err
		}
		all, err := app.Verify(ctx, cfg)
		out := admin.Verified{Journals: []admin.VerifiedJournal{}, Streams: []admin.VerifiedStream{}}
		for _, v := range all.Journals {
			j := admin.VerifiedJournal{
				Partition: v.Partition, Server: v.Server, Frames: v.Frames, Events: v.Events,
				ArchivedSegments: v.Segments, ArchivedFrames: v.ArchivedFrames, Erased: v.Erased, Removed: v.Removed,
				End: v.End.Hash.String(),
			}
			for _, damage := range v.Damage {
				j.Damage = append(j.Damage, damage.Error())
			}
			out.Journals = append(out.Journals, j)
		}
		for _, v := range all.Streams {
			s := admin.VerifiedStream{
				Name: v.Name, Server: v.Server, Messages: v.Messages, First: v.First,
				Last: v.Last, Damage: v.Damage, Again: v.Again, Snapshots: v.Snapshots,
			}
			if len(v.Damage) > 0 {
				s.Remedy = v.Remedy()
			}
			out.Streams = append(out.Streams, s)
		}
		return out, err
	}
	s.Repair = func(ctx context.Context, _ *pflag.FlagSet, o admin.RepairOptions) (admin.Repaired, error) {
		if err := settings.Load(config); err != nil {
			return admin.Repaired{}, err
		}
		r, err := app.Repair(ctx, cfg, app.Backup(o.From), o.Stores, o.AcceptLoss, o.Apply)
		out := admin.Repaired{Replaced: r.Replaced}
		for _, d := range r.Derived {
			out.Streams = append(out.Streams, admin.DamagedStream{Name: d.Name, Damage: d.Damage, Again: d.Again})
		}
		for _, j := range r.Journals {
			repaired := admin.RepairedJournal{
				Partition: j.Partition, Status: string(j.Status), Damage: j.Damage, Copies: j.Copies,
				BeginsSeq: j.Begins.Seq, BeginsWalSeq: j.Begins.WalSeq,
			}
			if l := j.Loss; l != nil {
				repaired.Loss = &admin.JournalLoss{
					First: l.First, Last: l.Last, Known: l.Known, Types: l.Types, Agents: l.Agents,
					WorkItems: l.WorkItems, Sessions: l.Sessions, File: l.File,
				}
			}
			if a := j.Archive; a != nil {
				repaired.Archive = &admin.RepairedArchive{Status: string(a.Status), Damage: a.Damage, Copies: a.Copies}
				for _, l := range a.Lost {
					repaired.Archive.Lost = append(repaired.Archive.Lost, admin.LostFrames{
						First: l.First, Last: l.Last,
						FirstWalSeq: l.FirstWalSeq, LastWalSeq: l.LastWalSeq,
					})
				}
			}
			out.Journals = append(out.Journals, repaired)
		}
		return out, err
	}
	s.Doctor = func(ctx context.Context, conn grpc.ClientConnInterface, o admin.DoctorOptions) []admin.Finding {
		err := settings.Load(config)
		var out []admin.Finding
		for _, f := range app.Examine(ctx, cfg, err, doctor.Client{
			Address: o.Address, Conn: conn, TLS: o.TLS,
			Token: o.Token, Now: o.Now,
		}) {
			out = append(out, admin.Finding(f))
		}
		return out
	}
	s.Worker, s.Guard, s.Confine = executeCommands, workers.GuardCommand(), workers.ConfineCommand()
	return s
}

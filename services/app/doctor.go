package app

import (
	"context"

	"quartet/pkg/version"
	"quartet/services/doctor"
	"quartet/services/storage/archives"
)

// Examine diagnoses a running server through c, and what a server with these settings
// would find on this machine. err is the error of reading the settings, if any.
func Examine(ctx context.Context, cfg Config, err error, c doctor.Client) []doctor.Finding {
	if err == nil {
		err = cfg.Complete()
	}
	if err == nil {
		err = cfg.checkArchive()
	}
	local := doctor.Server{
		Err: err, DataDir: cfg.DataDir, KeyFile: cfg.KeyFile, NATS: cfg.remote(), GRPCAddr: cfg.GRPCAddr,
		HTTPAddr: cfg.HTTPAddr,
		CertFile: cfg.TLS.Cert, TLSKeyFile: cfg.TLS.Key, AuthRequired: cfg.Auth == AuthRequired,
		AuthLocal: cfg.Auth == AuthLocal, Issuer: cfg.OIDC.Issuer, Replicas: cfg.Replicas,
		MonitorURL: cfg.NATSMonitorURL, MinPayload: minPayload,
	}
	if b := cfg.bucket; err == nil && b != nil {
		at := b.Location()
		local.Archive = doctor.Archive{Name: at.String(), Plain: at.Plain && !at.Loopback(), Check: b.Check}
	}
	if dir := cfg.Archive.Dir(); err == nil && dir != "" {
		local.Archive = doctor.Archive{Name: dir, Check: func(context.Context) error {
			return archives.CheckDirectory(dir)
		}}
	}
	if err == nil {
		local.OpenToOthers = loopback("grpc-addr", cfg.GRPCAddr) != nil || loopback("http-addr", cfg.HTTPAddr) != nil
	}
	if cfg.SignIn.SecretFile != "" {
		local.CheckSecret = cfg.SignIn.CheckSecret
	}
	c.Version = version.Get().String()
	return doctor.Examine(ctx, c, local)
}

package app

import (
	"context"

	"quartet/pkg/version"
	"quartet/services/doctor"
)

// Examine looks at a server from outside and at what one would find here with
// these settings; err is what was wrong with reading them.
func Examine(ctx context.Context, cfg Config, err error, c doctor.Client) []doctor.Finding {
	if err == nil {
		err = cfg.Complete()
	}
	here := doctor.Server{
		Err: err, DataDir: cfg.DataDir, KeyFile: cfg.KeyFile, NATS: cfg.remote(), GRPCAddr: cfg.GRPCAddr, HTTPAddr: cfg.HTTPAddr,
		CertFile: cfg.TLS.Cert, TLSKeyFile: cfg.TLS.Key, AuthRequired: cfg.Auth == AuthRequired, Issuer: cfg.OIDC.Issuer, Replicas: cfg.Replicas,
	}
	if err == nil {
		here.OpenToOthers = loopback("grpc-addr", cfg.GRPCAddr) != nil || loopback("http-addr", cfg.HTTPAddr) != nil
	}
	c.Version = version.Get().String()
	return doctor.Examine(ctx, c, here)
}

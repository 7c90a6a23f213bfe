// Command s3server is an S3 server for tests: versitygw over a directory, in which a bucket is a directory and an
// object a file.
//
// It is a module of its own, so that the product has none of its libraries.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "s3server:", err)
		os.Exit(1)
	}
}

// run serves until the process is told to end.
func run() error {
	dir := flag.String("dir", "", "Directory of the buckets")
	state := flag.String("state", "", "Directory for what the file system of -dir cannot keep with a file, if it has "+
		"no extended attributes")
	addr := flag.String("addr", "127.0.0.1:7070", "Address")
	access := flag.String("access-key", "", "The only access key, to which all is allowed")
	secret := flag.String("secret-key", "", "Its secret")
	cert := flag.String("cert", "", "Certificate (PEM); empty: plain text")
	key := flag.String("key", "", "Private key of the certificate (PEM)")
	flag.Parse()
	if *dir == "" {
		return errors.New("-dir is empty")
	}
	var metadata meta.MetadataStorer = meta.XattrMeta{}
	opts := posix.PosixOpts{}
	if err := (meta.XattrMeta{}).Test(*dir); err != nil {
		beside, err := meta.NewSideCar(*state)
		if err != nil {
			return fmt.Errorf("%s has no extended attributes; -state: %w", *dir, err)
		}
		metadata, opts.SideCarDir = beside, *state
	}
	files, err := posix.New(*dir, metadata, opts)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return embedgw.RunVersityGW(ctx, files, &embedgw.Config{
		RootUserAccess: *access, RootUserSecret: *secret, Ports: []string{*addr}, CertFile: *cert, KeyFile: *key,
		KeepAlive: true, Quiet: true, HealthPath: "/health", MaxConnections: 1000, MaxRequests: 1000,
		MultipartMaxParts: 10000,
	})
}

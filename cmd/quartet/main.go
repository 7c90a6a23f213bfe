// Command quartet contains all of Quartet in one binary: servers, workers, runners and client.
package main

import (
	"os"

	"quartet/services/cli"
)

func main() {
	os.Exit(cli.Main(servers()))
}

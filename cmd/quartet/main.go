// Command quartet is the whole of Quartet in one binary: servers and client.
package main

import (
	"os"

	"quartet/services/cli"
)

func main() {
	os.Exit(cli.Main(servers()))
}

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"quartet/pkg/fault"
	"quartet/pkg/localtoken"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/session"
)

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 64 << 10

// consoleCommand returns `quartet console`.
func consoleCommand(s *session.Session) *cobra.Command {
	var at string
	var show bool
	cmd := &cobra.Command{
		Use: "console", Short: "Open the web console, signed in", Args: input.None,
		Long: `Open the web console of the server in a browser, signed in with the credential of this
command. The address has a code after the #, which the server accepts once, within 60
seconds, and which browsers do not send to anybody. Where there is no browser, the
address is printed.`,
		Example: "  quartet console\n  quartet console --print\n  quartet console --url https://quartet.example.com/ " +
			"--token KEY",
	}
	cmd.Flags().StringVar(&at, "url", "",
		"The server's address for browsers (default: that of the server at --address)")
	cmd.Flags().BoolVar(&show, "print", false, "Print the address, and open nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		web, err := s.Web(at)
		if err != nil {
			return err
		}
		address, ends, err := signedIn(cmd.Context(), web)
		if err != nil {
			return err
		}
		if s.JSON() {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]string{"url": address, "expiresAt": ends})
		}
		if opener := browser(); !show && opener != "" && terminal.IsTerminal(cmd.OutOrStdout()) {
			if err := openBrowser(cmd.Context(), opener, address); err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "The console is opened in your browser. If it is not: "+
					"quartet console --print")
				return err
			}
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), address)
		return err
	}
	return cmd
}

// signedIn returns the address of the console with a one-time code, and when the code ends. Without a credential
// it is the address alone.
func signedIn(ctx context.Context, web *session.Web) (address, ends string, err error) {
	var failed error
	for _, base := range web.Bases {
		if web.Token == "" {
			if failed = consoleServed(ctx, web, base); failed == nil {
				return base + "ui/", "", nil
			}
			continue
		}
		code, ends, err := makeSignInCode(ctx, web, base)
		if err == nil {
			return base + "ui/#code=" + code, ends, nil
		}
		failed = err
		if !errors.Is(err, errNoConsole) {
			break
		}
	}
	return "", "", failed
}

// errNoConsole is the error of an address at which no server with a console answers.
var errNoConsole = fault.NotReady.New("no server with a console answers there; give its address with --url, which is " +
	"the server's http-addr or that of the proxy in front of it")

// webRequest makes a request, and returns status and body of its answer.
func webRequest(ctx context.Context, web *session.Web, method, url string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	if web.Token != "" {
		req.Header.Set("Authorization", "Bearer "+web.Token)
	}
	resp, err := web.Client.Do(req)
	if err != nil {
		return 0, nil, fault.NotReady.New(err.Error() + "; " + errNoConsole.Message()).WithCause(errNoConsole)
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, body, errors.Join(err, resp.Body.Close())
}

// consoleServed returns nil if there is a console at base.
func consoleServed(ctx context.Context, web *session.Web, base string) error {
	status, body, err := webRequest(ctx, web, http.MethodGet, base+"ui/")
	if err != nil {
		return err
	}
	if status != http.StatusOK || !bytes.Contains(body, []byte("<title>Quartet</title>")) {
		return errNoConsole
	}
	return nil
}

// makeSignInCode asks the server at base for a one-time code.
func makeSignInCode(ctx context.Context, web *session.Web, base string) (code, ends string, err error) {
	status, body, err := webRequest(ctx, web, http.MethodPost, base+"ui/code")
	if err != nil {
		return "", "", err
	}
	var answer struct {
		Code      string `json:"code"`
		ExpiresAt string `json:"expiresAt"`
		Error     struct {
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"error"`
	}
	err = json.Unmarshal(body, &answer)
	switch {
	case err == nil && status == http.StatusOK && answer.Code != "":
		return answer.Code, answer.ExpiresAt, nil
	case err == nil && status == http.StatusUnauthorized && answer.Error.Message != "":
		return "", "", fault.Unauthenticated.New(answer.Error.Message)
	case err == nil && answer.Error.Message != "" && status != http.StatusNotFound:
		return "", "", fault.NotReady.New(answer.Error.Message)
	}
	return "", "", errNoConsole
}

// browser returns the program that opens an address in this user's browser, "" if there is none.
func browser() string {
	name := "xdg-open"
	switch {
	case runtime.GOOS == "darwin":
		name = "open"
	case os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "":
		return ""
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// openBrowser opens an address in the browser. Other users of the machine can see the arguments of programs, so the
// browser is given a file of this user that leads to the address.
func openBrowser(ctx context.Context, opener, address string) error {
	dir, err := localtoken.Prepare()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "console.html")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	page := `<!doctype html><html lang="en"><meta charset="utf-8"><title>Quartet</title><meta http-equiv="refresh" content="0; url=` +
		html.EscapeString(address) + `"><p><a href="` + html.EscapeString(address) + `">The console</a></html>` + "\n"
	if err := os.WriteFile(path, []byte(page), 0o600); err != nil {
		return err
	}
	return exec.CommandContext(ctx, opener, path).Run()
}

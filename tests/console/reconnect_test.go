package console

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestG15_AfterTheServerWasKilled(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	page := r.signedIn()
	page.view("agents/keeper")
	page.sees("nothing is open that it could do")
	page.until("the stream", `document.querySelector(".live").innerText === "live"`)
	require.NoError(t, r.srv.Kill())
	page.sees("reconnecting")
	r.start()
	r.say("keeper", "are you there?")
	page.sees("1 message(s) queued")
	page.until("the stream", `document.querySelector(".live").innerText === "live"`)
	page.fill("Message to keeper", "and again")
	page.press("Send")
	page.sees("2 message(s) queued")
	page.misses("cannot be reached")
}

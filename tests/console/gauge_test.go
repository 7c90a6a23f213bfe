package console

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// figures returns figures of the page as Chromium counts them, such as Nodes, after a collection of garbage.
func (t *tab) figures() map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	require.NoError(t, chromedp.Do(t.ctx, chromedp.Func(func(ctx context.Context, to *chromedp.Target) error {
		if _, err := cdp.Call(ctx, to, performance.Enable, performance.EnableParams{}); err != nil {
			return err
		}
		if _, err := cdp.Call(ctx, to, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
			return err
		}
		got, err := cdp.Call(ctx, to, performance.GetMetrics, cdp.Empty{})
		for _, m := range got.Metrics {
			out[m.Name] = m.Value
		}
		return err
	})))
	return out
}

// alive returns how many objects for which a condition holds the page keeps in memory, wherever they are. The condition
// is an expression about o.
func (t *tab) alive(condition string) int {
	t.Helper()
	var n int
	require.NoError(t, chromedp.Do(t.ctx, chromedp.Func(func(ctx context.Context, to *chromedp.Target) error {
		proto, err := cdp.Call(ctx, to, runtime.Evaluate, runtime.EvaluateParams{
			Expression:  "Object.prototype",
			ObjectGroup: "alive",
		})
		if err != nil {
			return err
		}
		defer func() {
			_, _ = cdp.Call(ctx, to, runtime.ReleaseObjectGroup, runtime.ReleaseObjectGroupParams{ObjectGroup: "alive"})
		}()
		all, err := cdp.Call(ctx, to, runtime.QueryObjects, runtime.QueryObjectsParams{
			PrototypeObjectID: proto.Result.ObjectID, ObjectGroup: "alive",
		})
		if err != nil {
			return err
		}
		byValue := true
		got, err := cdp.Call(ctx, to, runtime.CallFunctionOn, runtime.CallFunctionOnParams{
			ObjectID: all.Objects.ObjectID, ReturnByValue: &byValue,
			FunctionDeclaration: "function () { let n = 0; for (const o of this) { try { if (" + condition +
				") n++; } catch {} } return n; }",
		})
		if err != nil {
			return err
		}
		_, err = fmt.Sscan(string(got.Result.Value), &n)
		return err
	})))
	return n
}

// observed makes the page note how long its interactions take, from the input to the next frame that is painted, and
// what keeps it from reacting.
const observed = `(() => {
	if (globalThis.observed) return;
	globalThis.observed = { slow: [], long: [] };
	new PerformanceObserver((l) => { for (const e of l.getEntries()) observed.slow.push([e.name, e.duration]); }).observe({ type: "event", durationThreshold: 16 });
	new PerformanceObserver((l) => { for (const e of l.getEntries()) observed.long.push(e.duration); }).observe({ type: "longtask" });
})()`

// took is how long interactions of a kind took, in milliseconds.
type took struct {
	paint []float64 // to the next paint; 16 or less is 16
	shown float64   // until the page showed what it led to, at the longest
}

// median returns the median to the next paint.
func (k *took) median() float64 {
	all := slices.Sorted(slices.Values(k.paint))
	return all[len(all)/2]
}

// interact does something in the page as a person does it, by the mouse or the keys, and waits until it shows. until is
// an expression.
func (t *tab) interact(of map[string]*took, name string, action chromedp.Action[chromedp.Void], until string) {
	t.Helper()
	t.do(observed)
	t.do(`void (observed.slow.length = 0)`)
	began := time.Now()
	require.NoError(t, chromedp.Do(t.ctx, action))
	t.until(name, until)
	shown := time.Since(began)
	// An entry exists once the frame was painted.
	t.do(`new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))))`)
	k := of[name]
	if k == nil {
		k = &took{}
		of[name] = k
	}
	k.paint = append(k.paint, value[float64](t, `Math.max(16, ...observed.slow.map((e) => e[1]))`))
	k.shown = max(k.shown, float64(shown.Milliseconds()))
}

// click clicks the middle of what an expression finds.
func (t *tab) click(at string) chromedp.Action[chromedp.Void] {
	t.Helper()
	t.until("something to click", at)
	where := value[[]float64](t,
		fmt.Sprintf(
			`(() => { const e = %s; e.scrollIntoView({ block: "nearest" }); const b = e.getBoundingClientRect(); return [b.x + Math.min(b.width / 2, 40), b.y + b.height / 2]; })()`, at))
	return chromedp.MouseClickXY(where[0], where[1])
}

// types enters a text by keys into what has the focus.
func types(text string) chromedp.Action[chromedp.Void] { return chromedp.KeyEvent(text) }

package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/encoding/protojson"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

const (
	markdown = "text/markdown"
	jsonText = "application/json"
	// plansShown limits the list of resources. Plans of further items can be read by
	// their URI.
	plansShown = 200
	// briefsShown is the number of briefs in their resource.
	briefsShown = 50
)

// baseURI, briefsURI and planURI return the URIs of the agent's resources: of the agent, of its briefs, and of the
// plan of an item.
func (a *agentServer) baseURI() string   { return "quartet://agents/" + a.agentID }
func (a *agentServer) briefsURI() string { return a.baseURI() + "/briefs" }
func (a *agentServer) planURI(itemID string) string {
	return a.baseURI() + "/work-items/" + itemID + "/plan.md"
}

// itemOf returns the id of the item whose plan a URI names; ok is false for any other URI. The item
// need not exist.
func (a *agentServer) itemOf(uri string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(uri, a.baseURI()+"/work-items/")
	id, file, _ := strings.Cut(rest, "/")
	id, err := url.PathUnescape(id)
	return id, ok && file == "plan.md" && err == nil && fault.Name("work_item_id", id) == nil
}

// templates registers the resources that every agent has: a template for the plans of its items, and
// the briefs.
func (a *agentServer) templates() {
	a.srv.AddResourceTemplate(&sdk.ResourceTemplate{
		Name: "plan", Title: "A work item's plan", URITemplate: a.baseURI() + "/work-items/{work_item_id}/plan.md",
		MIMEType: markdown,
		Description: "The plan file of a work item as it is now, completed items included. HomeEdit and HomeWrite " +
			"change it.",
	}, a.readPlan)
	a.srv.AddResource(&sdk.Resource{
		Name: "briefs", Title: "Briefs", URI: a.briefsURI(), MIMEType: jsonText,
		Description: "The newest briefs: acknowledgements, results and failures.",
	}, a.readBriefs)
}

// syncPlans updates the list of resources: it has the plans of the first plansShown open items.
// Clients that listen are notified of changes.
func (a *agentServer) syncPlans(ctx context.Context) error {
	unlock, err := a.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	open := map[string]string{}
	req := &workv1.ListWorkItemsRequest{
		AgentId: a.agentID, Filter: workv1.WorkItemFilter_WORK_ITEM_FILTER_OPEN,
		PageSize: plansShown,
	}
	got, err := persist(ctx, a, func(ctx context.Context) (*workv1.ListWorkItemsResponse, error) {
		return a.work.ListWorkItems(a.as(ctx), req)
	})
	if err != nil {
		return err
	}
	for _, it := range got.GetWorkItems() {
		open[a.planURI(it.GetWorkItemId())] = it.GetObjective()
	}
	var removed []string
	for uri := range a.shown {
		if _, still := open[uri]; !still {
			removed = append(removed, uri)
			delete(a.shown, uri)
		}
	}
	if len(removed) > 0 {
		a.srv.RemoveResources(removed...)
	}
	for uri, objective := range open {
		if a.shown[uri] {
			continue
		}
		a.shown[uri] = true
		a.srv.AddResource(&sdk.Resource{
			Name: strings.TrimPrefix(uri, a.baseURI()+"/work-items/"), Title: "Plan: " + objective, URI: uri,
			MIMEType:    markdown,
			Description: "Plan of the open work item: " + objective,
		}, a.readPlan)
	}
	return nil
}

// readPlan reads the plan file of an item as text. A file of more than fault.MaxRequestBytes is cut
// somewhere after that.
func (a *agentServer) readPlan(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	wi, ok := a.itemOf(req.Params.URI)
	if !ok {
		return nil, sdk.ResourceNotFoundError(req.Params.URI)
	}
	var text strings.Builder
	for offset := int64(0); ; {
		got, err := persist(ctx, a, func(ctx context.Context) (*workv1.ReadFileResponse, error) {
			return a.home.ReadFile(a.as(ctx), &workv1.ReadFileRequest{
				AgentId: a.agentID, Path: "work-items/" + wi + "/plan.md", Offset: offset, Limit: 1 << 20,
			})
		})
		switch {
		case errors.Is(err, fault.NotFound):
			return nil, sdk.ResourceNotFoundError(req.Params.URI)
		case err != nil:
			return nil, a.protocolError(err)
		}
		text.WriteString(got.GetText())
		text.Write(got.GetData())
		if offset = got.GetNextOffset(); offset == 0 || text.Len() > fault.MaxRequestBytes {
			break
		}
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{
		URI: req.Params.URI, MIMEType: markdown, Text: strings.ToValidUTF8(text.String(), "\uFFFD"),
	}}}, nil
}

// readResult is a result whose contents have a text even if that is empty. The SDK omits an empty
// text, and clients refuse contents that have neither text nor blob (SPEC C5.6).
type readResult struct{ *sdk.ReadResourceResult }

// withText returns a result of reading a resource as a readResult, and anything else as it is.
func withText(r sdk.Result, err error) (sdk.Result, error) {
	read, ok := r.(*sdk.ReadResourceResult)
	if err != nil || !ok || read == nil {
		return r, err
	}
	return readResult{read}, nil
}

// MarshalJSON implements json.Marshaler.
func (r readResult) MarshalJSON() ([]byte, error) {
	raw, err := r.ReadResourceResult.MarshalJSON()
	if err != nil || !slices.ContainsFunc(r.Contents, func(c *sdk.ResourceContents) bool {
		return c.Text == "" &&
			c.Blob == nil
	}) {
		return raw, err
	}
	var all map[string]json.RawMessage
	var contents []map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(all["contents"], &contents); err != nil {
		return nil, err
	}
	for i, c := range r.Contents {
		if c.Text == "" && c.Blob == nil {
			contents[i]["text"] = json.RawMessage(`""`)
		}
	}
	if all["contents"], err = json.Marshal(contents); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// readBriefs reads the newest briefs as JSON.
func (a *agentServer) readBriefs(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	got, err := persist(ctx, a, func(ctx context.Context) (*agentv1.ListBriefsResponse, error) {
		return a.agents.ListBriefs(a.as(ctx), &agentv1.ListBriefsRequest{AgentId: a.agentID, PageSize: briefsShown})
	})
	if err != nil {
		return nil, a.protocolError(err)
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(got)
	if err != nil {
		return nil, err
	}
	return &sdk.ReadResourceResult{
		Contents: []*sdk.ResourceContents{{URI: req.Params.URI, MIMEType: jsonText, Text: string(text)}},
	}, nil
}

// follow keeps the list of resources up to date until ctx ends: an item that is created or completed
// changes it. When a file or a brief is written, it has the subscribed resources compared. It returns
// early if the caller may not watch events or the server has none.
func (a *agentServer) follow(ctx context.Context) {
	req := &eventv1.WatchEventsRequest{
		AgentId: a.agentID, Planes: []string{"work", "agent"}, EventTypes: []string{
			"work_item_created",
			"work_item_completed", "home_file_written", "brief_written",
		},
	}
	for ctx.Err() == nil {
		err := a.followOnce(ctx, req)
		if errors.Is(err, fault.Unimplemented) || errors.Is(err, fault.PermissionDenied) {
			return // the lists are still read at each request
		}
		if errors.Is(err, fault.CursorOutOfRange) {
			req.Cursor = ""
		}
		timer := time.NewTimer(a.cfg.Progress)
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
}

// followOnce follows one stream of events and updates the list of plans after its first
// message and after each event. It moves req.Cursor, so that the next call continues there.
// It returns the error, never nil, with which the stream ended or the list could not be read.
func (a *agentServer) followOnce(ctx context.Context, req *eventv1.WatchEventsRequest) error {
	stream, err := a.events.WatchEvents(a.as(ctx), req)
	if err != nil {
		return err
	}
	// The list is read after the first message, which confirms that the stream is open,
	// so that no change between the two is missed.
	for open := false; ; open = true {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if m.GetEvent() == nil {
			req.Cursor = m.GetHeartbeatCursor()
		} else {
			req.Cursor = m.GetEvent().GetCursor()
		}
		if open && m.GetEvent() == nil {
			continue
		}
		a.subscriptions.kick()
		switch m.GetEvent().GetEventType() {
		case "home_file_written", "brief_written":
			continue // the list stays
		}
		if err := a.syncPlans(ctx); err != nil {
			return err
		}
	}
}

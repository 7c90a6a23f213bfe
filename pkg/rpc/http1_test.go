package rpc_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// A client of HTTP/1 at the address of gRPC is told so, also after a large body, and gRPC works beside it.
func TestHTTP1AtTheAddressOfGRPC(t *testing.T) {
	s := newSite(t, true)
	s.ready.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, method := range []string{
		http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodOptions,
	} {
		req, err := http.NewRequestWithContext(ctx, method, "http://"+s.address+"/v1/agents",
			strings.NewReader(strings.Repeat("x", 10_000)))
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err, method)
		var body struct {
			Error struct {
				Code    int
				Message string
			}
		}
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&body), method)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusMisdirectedRequest, resp.StatusCode)
		require.Equal(t, http.StatusMisdirectedRequest, body.Error.Code)
		require.Contains(t, body.Error.Message, "this is the gRPC address")
	}
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, resp.GetStatus())
}

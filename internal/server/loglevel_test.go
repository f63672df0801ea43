package server_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/server"
)

// Members of system:masters change the log level of a server that runs. Nobody else does, in no
// cluster. The test is not parallel: the level is that of the process.
func TestLogLevel(t *testing.T) {
	c := newTenant(t)
	put := func(u user.Info, path, level string) int {
		t.Helper()
		client := &http.Client{Transport: c.server.InProcess("root", u).Transport}
		resp := must(client.Do(must(http.NewRequestWithContext(t.Context(), http.MethodPut, "http://kcp"+path, strings.NewReader(level)))(t)))(t)
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	const flag = "/debug/flags/v"
	before := klog.V(9).Enabled()
	if status := put(server.System(), flag, "9"); status != http.StatusOK || !klog.V(9).Enabled() {
		t.Errorf("masters: %d, and the level is %v", status, klog.V(9).Enabled())
	}
	if status := put(server.System(), flag, "nine"); status != http.StatusBadRequest {
		t.Errorf("a malformed level: %d", status)
	}
	owner := &user.DefaultInfo{Name: "owner", Groups: []string{user.AllAuthenticated}}
	c.grant("owner", rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "owner"})
	for _, path := range []string{flag, c.path(flag)} {
		if status := put(owner, path, "1"); status != http.StatusForbidden {
			t.Errorf("the owner of a workspace at %s: %d", path, status)
		}
	}
	level := "0"
	if before {
		level = "9"
	}
	if status := put(server.System(), flag, level); status != http.StatusOK {
		t.Errorf("back to %s: %d", level, status)
	}
}

package flow

import (
	"net"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// loopsPrefix begins the key under which the work of loops for a tenant counts.
const loopsPrefix = "loops:"

// TenantKey returns the key of a tenant in [fair.Shares]. c is the cluster that stands for it.
func TenantKey(c cluster.Name) string { return "cluster:" + string(c) }

// callerKey returns the tenant key of a request whose cluster does not determine the tenant.
// The key is that of the cluster which authenticated the user, the client address of an
// anonymous user, or the user name. It is empty for the system, which has no limits.
func (f *Filters) callerKey(req *http.Request, u user.Info) string {
	if isSystem(u) {
		return ""
	}
	if home := u.GetExtra()[auth.ClusterNameKey]; len(home) == 1 {
		if t, ok := f.Tenant(cluster.Name(home[0])); ok {
			return TenantKey(t)
		}
	}
	if u.GetName() == user.Anonymous {
		return addressKey(req)
	}
	return "user:" + u.GetName()
}

// tenantKey returns the tenant key of an authorized request: the tenant of its cluster.
// Requests without a cluster, to root and to system clusters count for their caller.
func (f *Filters) tenantKey(req *http.Request, u user.Info) string {
	c, ok := cluster.From(req.Context())
	if !ok || c == cluster.All || c == cluster.Root || c.System() {
		return f.callerKey(req, u)
	}
	if t, ok := f.Tenant(c); ok {
		return TenantKey(t)
	}
	return f.callerKey(req, u)
}

// loopKey returns the tenant key of a request of the server's own loops. Their work for a tenant
// shares the processors like that of another tenant: the tenant's requests do not delay it, and
// it does not delay other tenants. Work for no tenant has no limits.
func (f *Filters) loopKey(req *http.Request) string {
	c, ok := cluster.From(req.Context())
	if !ok || c == cluster.All || c == cluster.Root || c.System() {
		return ""
	}
	t, ok := f.Tenant(c)
	if !ok {
		return ""
	}
	return loopsPrefix + TenantKey(t)
}

// addressKey returns the tenant key of an anonymous request: its client address.
func addressKey(req *http.Request) string {
	host, _, err := net.SplitHostPort(req.RemoteAddr)
	if err != nil {
		host = req.RemoteAddr
	}
	return "address:" + host
}

func isSystem(u user.Info) bool {
	return u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

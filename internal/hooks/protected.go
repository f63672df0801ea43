package hooks

import (
	"strings"

	"github.com/unforked/kcp/internal/admit"
)

// protected reports whether tenants may not change the object of a request: the request is one
// of an operator, whom the server's own rules trust with fields that tenants may not set, and
// its kind is one of the server. An operator who annotates a Workspace would otherwise write
// whatever a webhook of the tenant adds to it.
func protected(r admit.Request) bool {
	group := r.GetResource().Group
	return r.Privileged() && (group == "kcp.io" || strings.HasSuffix(group, ".kcp.io"))
}

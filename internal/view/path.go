package view

import (
	"fmt"
	"strings"

	"github.com/unforked/kcp/internal/cluster"
)

// parseOwned reads the part of a path after the name of a view that belongs to an object.
func parseOwned(view, object, rest string) (*Request, error) {
	home, rest, _ := strings.Cut(rest, "/")
	name, rest, _ := strings.Cut(rest, "/")
	word, rest, found := strings.Cut(rest, "/")
	at, path, _ := strings.Cut(rest, "/")
	if home == "" || name == "" || !found || word != "clusters" || at == "" {
		return nil, notFound(fmt.Sprintf("the path of this view is %s%s/<logical cluster>/<%s>/clusters/<name or *>/…", Prefix, view, object))
	}
	return newRequest(home, name, at, path), nil
}

// newRequest returns the request for a view that belongs to cluster home. An invalid home gives
// the same answer as a view of another owner, and paths lead nowhere in a view.
func newRequest(home, id, at, path string) *Request {
	r := &Request{ID: id, Home: cluster.Name(home), Cluster: cluster.Name(at), Path: "/" + path}
	if _, err := cluster.ParseName(home); err != nil {
		r.Home = cluster.NewName()
	}
	if _, err := cluster.ParseName(at); err != nil && r.Cluster != cluster.All {
		r.Cluster, r.nameless = cluster.NewName(), true
	}
	return r
}

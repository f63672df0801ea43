package server

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

const (
	// reachPage is how many workspaces are listed at once unless fewer are asked for.
	reachPage = 500
	// reachTries bounds how many clusters are looked into for a page. Bindings may name
	// a user and yet not let him in.
	reachTries = 20_000
)

// A place is a cluster and where it is.
type place struct {
	name cluster.Name
	path cluster.Path
}

func (p place) compare(other place) int {
	return cmp.Or(strings.Compare(string(p.path), string(other.path)), strings.Compare(string(p.name), string(other.name)))
}

// A bookmark is where a list goes on: after a workspace that was listed, and as many
// that were not.
type bookmark struct {
	Path cluster.Path `json:"p"`
	Name cluster.Name `json:"c"`
	Skip int          `json:"s,omitempty"`
}

// reachable lists the workspaces that whoever asks may enter, by path.
func (s *Server) reachable(req *http.Request, u user.Info) (any, error) {
	limit, from, err := readPage(req.URL.Query())
	if err != nil {
		return nil, err
	}
	ctx := s.authz.Settle(req.Context())
	places := s.places(s.candidates(ctx, u))
	list := &tenancyapi.WorkspaceList{Items: []tenancyapi.Workspace{}}
	list.SetGroupVersionKind(tenancyapi.GroupVersion.WithKind("WorkspaceList"))
	at := bookmark{}
	if from != nil {
		at = *from
		i, found := slices.BinarySearchFunc(places, place{at.Name, at.Path}, place.compare)
		if found {
			i++
		}
		places = places[i:]
		places = places[min(at.Skip, len(places)):] // of a sum a client could make an overflow
	}
	for i, p := range places {
		if len(list.Items) == limit || i == reachTries {
			if list.Continue, err = at.encode(); err != nil {
				return nil, err
			}
			break
		}
		if ctx.Err() != nil {
			return nil, apierrors.NewTimeoutError("the list took too long; ask for fewer workspaces at a time", 1)
		}
		root, ok := s.tree.Cluster(p.name)
		if !ok || !s.authz.Enters(ctx, p.name, u) {
			at.Skip++
			continue
		}
		at = bookmark{Path: p.path, Name: p.name}
		w := tenancyapi.Workspace{}
		w.SetGroupVersionKind(tenancyapi.GroupVersion.WithKind("Workspace"))
		w.Name = cmp.Or(root.Name, string(p.name))
		w.CreationTimestamp = metav1.NewTime(root.Begun)
		w.Annotations = map[string]string{core.PathAnnotation: string(p.path)}
		w.Spec.Cluster, w.Spec.URL = string(p.name), s.urlOf(p.path)
		w.Status.Phase = s.phaseAt(p.path, root)
		list.Items = append(list.Items, w)
	}
	return list, nil
}

func (s *Server) urlOf(p cluster.Path) string {
	return s.config.ExternalURL + clustersPrefix + string(p)
}

// candidates returns the clusters that u may perhaps enter: those with bindings that
// name him, and those below bindings that hold there too.
func (s *Server) candidates(ctx context.Context, u user.Info) []cluster.Name {
	if s.authz.EntersAll(ctx, u) {
		return s.tree.Clusters()
	}
	found := map[cluster.Name]bool{}
	if home, ok := auth.Home(u); ok {
		found[home] = true
	}
	bindings := s.rbac.clusterRoleBindings
	for _, n := range auth.Namesakes(u) {
		value := subjectValue(n.Subject)
		for _, c := range bindings.ClustersBy(value) {
			if n.In == "" || n.In == c {
				found[c] = true
			}
		}
		for _, c := range bindings.ClustersBy(descending + "/" + value) {
			if n.In == "" || n.In == c {
				s.addBelow(found, c)
			}
		}
	}
	all := make([]cluster.Name, 0, len(found))
	for c := range found {
		all = append(all, c)
	}
	return all
}

// addBelow adds the clusters below c, for which no stack of their depth is needed.
func (s *Server) addBelow(found map[cluster.Name]bool, c cluster.Name) {
	seen := map[cluster.Name]bool{c: true}
	for left := []cluster.Name{c}; len(left) > 0; {
		at := left[len(left)-1]
		left = left[:len(left)-1]
		for _, child := range s.tree.Children(at) {
			if child.Cluster != "" && !seen[child.Cluster] {
				seen[child.Cluster], found[child.Cluster] = true, true
				left = append(left, child.Cluster)
			}
		}
	}
}

func (s *Server) places(names []cluster.Name) []place {
	all := make([]place, 0, len(names))
	for _, c := range names {
		if !c.System() {
			all = append(all, place{c, s.tree.PathOf(c)})
		}
	}
	slices.SortFunc(all, place.compare)
	return all
}

func readPage(q url.Values) (limit int, from *bookmark, err error) {
	limit = reachPage
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 0 {
			return 0, nil, apierrors.NewBadRequest("limit must be a number of workspaces, 0 for as many as possible")
		}
		if limit = min(limit, reachPage); limit == 0 {
			limit = reachPage
		}
	}
	token := q.Get("continue")
	if token == "" {
		return limit, nil, nil
	}
	from = &bookmark{}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(text, from)
	}
	if err != nil || from.Skip < 0 {
		return 0, nil, apierrors.NewBadRequest("continue is not from a list of this server; begin the list again without it")
	}
	return limit, from, nil
}

func (b bookmark) encode() (string, error) {
	text, err := json.Marshal(b)
	return base64.RawURLEncoding.EncodeToString(text), err
}

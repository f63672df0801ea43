package reach

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/edge"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

const (
	// reachPage is the default and maximum number of workspaces per page.
	reachPage = 500
	// reachTries is the maximum number of clusters that are checked for a page. A binding
	// may name a user without giving access.
	reachTries = 20_000
)

// A place is a cluster with its path.
type place struct {
	name cluster.Name
	path cluster.Path
}

func (p place) compare(other place) int {
	return cmp.Or(strings.Compare(string(p.path), string(other.path)), strings.Compare(string(p.name), string(other.name)))
}

// A bookmark is the continue token of a list. The list continues after the given workspace,
// and skips the given number of workspaces that the user may not enter.
type bookmark struct {
	Path cluster.Path `json:"p"`
	Name cluster.Name `json:"c"`
	Skip int          `json:"s,omitempty"`
}

// reachable lists the workspaces that the user may enter, ordered by path.
func (q *Queries) reachable(req *http.Request, u user.Info) (any, error) {
	limit, from, err := readPage(req.URL.Query())
	if err != nil {
		return nil, err
	}
	ctx := q.Authorizer.Settle(req.Context())
	places := q.places(q.candidates(ctx, u))
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
		places = places[min(at.Skip, len(places)):] // one slice per step: a sum could overflow
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
		root, ok := q.Workspaces.Tree.Cluster(p.name)
		if !ok || !q.Authorizer.Enters(ctx, p.name, u) {
			at.Skip++
			continue
		}
		at = bookmark{Path: p.path, Name: p.name}
		w := tenancyapi.Workspace{}
		w.SetGroupVersionKind(tenancyapi.GroupVersion.WithKind("Workspace"))
		w.Name = cmp.Or(root.Name, string(p.name))
		w.CreationTimestamp = metav1.NewTime(root.Created)
		w.Annotations = map[string]string{core.PathAnnotation: string(p.path)}
		w.Spec.Cluster, w.Spec.URL = string(p.name), q.urlOf(p.path)
		if i := strings.LastIndexByte(root.Type, ':'); i > 0 {
			w.Spec.Type = &tenancyapi.WorkspaceTypeReference{Path: root.Type[:i], Name: root.Type[i+1:]}
		}
		w.Status.Phase = q.phaseAt(p.path, root)
		list.Items = append(list.Items, w)
	}
	return list, nil
}

func (q *Queries) urlOf(p cluster.Path) string {
	return q.Workspaces.BaseURL + edge.Prefix + string(p)
}

// candidates returns a superset of the clusters that u may enter: those with bindings that
// name u, and those below bindings that apply to descendants.
func (q *Queries) candidates(ctx context.Context, u user.Info) []cluster.Name {
	if q.Authorizer.EntersAll(ctx, u) {
		return q.Workspaces.Tree.Clusters()
	}
	found := map[cluster.Name]bool{}
	if home, ok := auth.Home(u); ok {
		found[home] = true
	}
	for _, n := range auth.MatchingSubjects(u) {
		for _, c := range q.RBAC.ClustersOf(n.Subject) {
			if n.In == "" || n.In == c {
				found[c] = true
			}
		}
		for _, c := range q.RBAC.ClustersAbove(n.Subject) {
			if n.In == "" || n.In == c {
				q.addBelow(found, c)
			}
		}
	}
	all := make([]cluster.Name, 0, len(found))
	for c := range found {
		all = append(all, c)
	}
	return all
}

// addBelow adds the descendants of c. It does not recurse, because trees can be deep.
func (q *Queries) addBelow(found map[cluster.Name]bool, c cluster.Name) {
	seen := map[cluster.Name]bool{c: true}
	for left := []cluster.Name{c}; len(left) > 0; {
		at := left[len(left)-1]
		left = left[:len(left)-1]
		for _, child := range q.Workspaces.Tree.Children(at) {
			if child.Cluster != "" && !seen[child.Cluster] {
				seen[child.Cluster], found[child.Cluster] = true, true
				left = append(left, child.Cluster)
			}
		}
	}
}

func (q *Queries) places(names []cluster.Name) []place {
	all := make([]place, 0, len(names))
	for _, c := range names {
		if !c.System() {
			all = append(all, place{c, q.Workspaces.Tree.PathOf(c)})
		}
	}
	slices.SortFunc(all, place.compare)
	return all
}

func readPage(query url.Values) (limit int, from *bookmark, err error) {
	if limit, err = edge.PageLimit(query, reachPage, "workspaces"); err != nil {
		return 0, nil, err
	}
	token := query.Get("continue")
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

// phaseAt returns the phase of the cluster at a path. A Ready cluster that is unavailable at
// the path has the phase Unavailable.
func (q *Queries) phaseAt(p cluster.Path, root tree.Root) core.Phase {
	if root.Phase == core.PhaseReady && q.Workspaces.Tree.Unavailable(p) {
		return core.PhaseUnavailable
	}
	return root.Phase
}

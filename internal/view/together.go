package view

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/routine"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/network/inprocess"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/request/response"
	"github.com/unforked/kcp/internal/storage/watches"
	"github.com/unforked/kcp/internal/view/joint"
)

// Watches resolves requests for several kinds together as watches: the server gives them no time
// limit, and serves them after its filters have returned.
type Watches struct{ request.RequestInfoResolver }

// NewRequestInfo implements [request.RequestInfoResolver].
func (w Watches) NewRequestInfo(req *http.Request) (*request.RequestInfo, error) {
	info, err := w.RequestInfoResolver.NewRequestInfo(req)
	if r, ok := From(req.Context()); ok && err == nil && r.together() && info.Verb == "get" {
		info.Verb = "watch"
	}
	return info, err
}

func (r *Request) together() bool {
	return r.Path == joint.Path && r.Cluster == cluster.All
}

// A together is a watch of several kinds in one response. Each kind has a watch of its own, which
// is planned, limited and served as any other.
type together struct {
	parts []part
	// listing is true if the watch begins with the existing objects.
	listing bool
	versions
}

// versions converts between the revisions of etcd and the resource versions of clients.
type versions struct {
	revision        func(resourceVersion string) (int64, error)
	resourceVersion func(int64) string
}

// A part is the watch of one kind.
type part struct {
	request *http.Request
	of      *Request
	plan    *Plan
	from    int64 // the revision to begin with; 0 begins with the existing objects
}

// together plans a watch of several kinds in all clusters.
func (v *Exports) together(req *http.Request, r *Request) (*Plan, error) {
	query := req.URL.Query()
	for name := range query {
		if !slices.Contains([]string{"resource", "resourceVersion", "timeoutSeconds"}, name) {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("a watch of several kinds has no parameter %q: it has resource, resourceVersion and timeoutSeconds", name))
		}
	}
	kinds := query["resource"]
	switch {
	case req.Method != http.MethodGet:
		return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "watch"}, req.Method)
	case len(kinds) == 0:
		return nil, apierrors.NewBadRequest("name what to watch, as in ?resource=v1/configmaps&resource=example.com/v1/widgets")
	case len(kinds) > joint.MaxKinds:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("at most %d kinds can be watched together; open another watch for the others", joint.MaxKinds))
	}
	epoch := v.config.Epoch()
	p := &Plan{together: &together{versions: versions{epoch.Revision, epoch.ResourceVersion}}}
	seen := map[string]bool{}
	for _, kind := range kinds {
		name, from, own := strings.Cut(kind, "@")
		switch {
		case seen[name]:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("resource %q is there twice", name))
		case own != strings.Contains(kinds[0], "@"), own && (query.Has("resourceVersion") || from == "" || from == "0"):
			return nil, apierrors.NewBadRequest("give one resourceVersion for all kinds, or one for each, as in ?resource=v1/configmaps@7&resource=v1/secrets@9")
		case !own:
			from = query.Get("resourceVersion")
		}
		seen[name] = true
		one, err := v.part(req, r, name, from)
		if err != nil {
			return nil, err
		}
		p.together.parts, p.together.listing = append(p.together.parts, one), one.from == 0
		p.User, p.Reason = one.plan.User, one.plan.Reason
	}
	return p, nil
}

// part plans the watch of one kind, such as "example.com/v1/widgets", from a resource version.
func (v *Exports) part(req *http.Request, r *Request, kind, from string) (part, error) {
	var revision int64
	query := url.Values{"watch": {"true"}, "allowWatchBookmarks": {"true"}}
	if timeout := req.URL.Query()["timeoutSeconds"]; timeout != nil {
		query["timeoutSeconds"] = timeout
	}
	if from != "" {
		query.Set("resourceVersion", from)
	}
	if from != "" && from != "0" {
		var err error
		if revision, err = v.config.Epoch().Revision(from); storage.IsInvalidError(err) {
			err = apierrors.NewBadRequest(err.Error())
		}
		if err != nil {
			return part{}, err
		}
	}
	words := strings.Split(kind, "/")
	if len(words) < 2 || len(words) > 3 || slices.Contains(words, "") {
		return part{}, apierrors.NewBadRequest(fmt.Sprintf("resource %q is not of the form <group>/<version>/<plural>, or <version>/<plural> in the core group", kind))
	}
	path := "/apis/" + kind
	if len(words) == 2 {
		path = "/api/" + kind
	}
	inside := req.Clone(req.Context())
	inside.Header = http.Header{"Accept": {"application/json"}}
	inside.URL = &url.URL{Path: path, RawQuery: query.Encode()}
	inside.RequestURI = inside.URL.RequestURI()
	paths := request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := paths.NewRequestInfo(inside)
	if err != nil || !info.IsResourceRequest || info.Verb != "watch" || info.Name != "" {
		return part{}, apierrors.NewBadRequest(fmt.Sprintf("resource %q cannot be watched", kind))
	}
	inside = inside.WithContext(request.WithRequestInfo(req.Context(), info))
	of := *r
	of.Path = path
	plan, err := v.Plan(inside, &of)
	return part{inside, &of, plan, revision}, err
}

// serve answers the request. As any watch, it goes on after the filters of the request have
// returned. next serves the watch of one kind.
func (t *together) serve(w http.ResponseWriter, req *http.Request, next func(http.ResponseWriter, *http.Request, part)) {
	response.AfterFilters(req.Context(), func() { t.run(w, req, next) })
}

func (t *together) run(w http.ResponseWriter, req *http.Request, next func(http.ResponseWriter, *http.Request, part)) {
	requests := watches.NewProgressRequests()
	m := newMerge(w, t, requests)
	ctx, cancel := context.WithCancel(req.Context())
	defer m.running.Wait()
	defer cancel()
	m.ended = ctx.Done()
	open := func(p part) (*http.Response, error) {
		transport := inprocess.Transport{User: p.plan.User, Stop: ctx, Running: &m.running, Grace: time.Millisecond,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, inside *http.Request) {
				ctx, end, err := fair.Branch(inside.Context())
				defer end()
				if err != nil {
					fail(w, err)
					return
				}
				ctx = watches.WithProgressRequests(routine.WithTask(ctx, nil), requests)
				info, _ := request.RequestInfoFrom(p.request.Context())
				next(w, inside.WithContext(request.WithRequestInfo(ctx, info)), p)
			}),
		}
		return transport.RoundTrip(p.request.WithContext(ctx))
	}
	if err := m.run(t.parts, open); err != nil && !errors.Is(err, errEnded) && ctx.Err() == nil {
		m.fail(err)
	}
}

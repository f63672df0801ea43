package view

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/client-go/kubernetes/scheme"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/storage/feed"
)

// maxHistories limits the clusters whose changes a [Schemas] remembers.
const maxHistories = 1000

// SchemasConfig holds the dependencies of [Schemas]. All fields are required.
type SchemasConfig struct {
	// Guard authorizes the use of the view.
	Guard authorizer.Authorizer
	// APIs returns the exports and bindings.
	APIs func() *bind.APIs
	// Discovery describes the view.
	Discovery func(context.Context) (http.Handler, error)
}

// Schemas is the view of the APIResourceSchemas behind the bindings of a cluster. It serves gets,
// lists and watches in JSON. Users who may get the APIBindings of the cluster may use it.
type Schemas struct {
	config  SchemasConfig
	watches openWatches

	mu sync.Mutex
	// histories has the clusters that were listed. A watch begins only where it is known that
	// nothing has changed since its list.
	histories map[cluster.Name]history
}

// A history is of the changes of a cluster after revision since: the last one was at revision last, 0
// if there was none.
type history struct{ since, last int64 }

// NewSchemas returns the view.
func NewSchemas(c SchemasConfig) *Schemas {
	return &Schemas{config: c, watches: newOpenWatches(), histories: map[cluster.Name]history{}}
}

// Name implements [View].
func (v *Schemas) Name() string { return "apiresourceschema" }

// Parse implements [View].
func (v *Schemas) Parse(rest string) (*Request, error) {
	home, path, _ := strings.Cut(rest, "/")
	path = strings.TrimPrefix(path, "clusters/*/")
	if home == "" || strings.HasPrefix(path, "clusters/") {
		return nil, notFound(fmt.Sprintf("the path of this view is %s%s/<logical cluster>/…", Prefix, v.Name()))
	}
	return newRequest(home, home, home, path), nil
}

// Changed notes that a cluster has other schemas.
func (v *Schemas) Changed(c cluster.Name) {
	v.mu.Lock()
	if h, ok := v.histories[c]; ok {
		h.last = v.config.APIs().Revision() + 1 // the change is not counted in it yet
		v.histories[c] = h
	}
	v.mu.Unlock()
	v.watches.changed(c)
}

// Reset implements [feed.Follower].
func (*Schemas) Reset() {}

// Apply implements [feed.Follower]. See Changed.
func (*Schemas) Apply(feed.Event) {}

// Done implements [feed.Follower]: any cluster may have changed.
func (v *Schemas) Done() {
	v.mu.Lock()
	clear(v.histories)
	v.mu.Unlock()
	v.watches.rebuilt()
}

// listed remembers the changes of a cluster from now on.
func (v *Schemas) listed(c cluster.Name, rev int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.histories[c]; ok {
		return
	}
	for other := range v.histories {
		if len(v.histories) < maxHistories {
			break
		}
		delete(v.histories, other)
	}
	v.histories[c] = history{since: rev}
}

// unchanged reports whether it is known that a cluster has the schemas that it had at a revision.
func (v *Schemas) unchanged(c cluster.Name, rev int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	h, ok := v.histories[c]
	return ok && h.since <= rev && h.last <= rev
}

var apiSchemas = schema.GroupResource{Group: apisv1alpha1.GroupVersion.Group, Resource: "apiresourceschemas"}

// Plan implements [View].
func (v *Schemas) Plan(req *http.Request, r *Request) (*Plan, error) {
	ctx := req.Context()
	u, info, err := requestOf(ctx)
	if err != nil {
		return nil, err
	}
	guard := authorizer.AttributesRecord{
		User: u, Verb: "get", APIGroup: apiBindings.Group, APIVersion: apisv1alpha1.GroupVersion.Version, Resource: apiBindings.Resource, ResourceRequest: true,
	}
	if err := authorize(ctx, v.config.Guard, guard); err != nil {
		return nil, err
	}
	p := &Plan{User: u, Reason: "the user may get the APIBindings of " + string(r.Home)}
	switch gr := (schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}); {
	case !info.IsResourceRequest && describes(info.Path):
		p.Page, err = v.config.Discovery(ctx)
		return p, err
	case !info.IsResourceRequest || gr != apiSchemas || info.APIVersion != apisv1alpha1.GroupVersion.Version:
		return nil, notFound("this view has nothing but " + apiSchemas.String())
	case req.Method != http.MethodGet || info.Subresource != "" || info.Verb != "get" && info.Verb != "list" && info.Verb != "watch":
		return nil, apierrors.NewMethodNotSupported(apiSchemas, info.Verb)
	}
	q, err := newSchemaQuery(req, r.Home, info)
	if err != nil {
		return nil, err
	}
	p.Page = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var err error
		switch info.Verb {
		case "get":
			err = v.get(w, req, q)
		case "list":
			err = v.list(w, req, q)
		default:
			err = v.watch(w, req, q)
		}
		if err != nil {
			responsewriters.ErrorNegotiated(err, scheme.Codecs, apisv1alpha1.GroupVersion, w, req)
		}
	})
	return p, nil
}

func (v *Schemas) get(w http.ResponseWriter, req *http.Request, q *schemaQuery) error {
	for _, s := range v.config.APIs().BoundSchemas(q.cluster) {
		if s.Name != q.name {
			continue
		}
		o, err := v.config.APIs().Schema(req.Context(), s)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		if o != nil {
			return writeJSON(w, o.Object)
		}
	}
	return apierrors.NewNotFound(apiSchemas, q.name)
}

func (v *Schemas) list(w http.ResponseWriter, req *http.Request, q *schemaQuery) error {
	rev := v.config.APIs().Revision()
	v.listed(q.cluster, rev)
	items := []any{}
	for _, s := range v.config.APIs().BoundSchemas(q.cluster) {
		o, err := v.read(req.Context(), s)
		if err != nil {
			return err
		}
		if o == nil || !q.selects(o) {
			continue
		}
		if err := grow(req.Context(), o); err != nil {
			return err
		}
		items = append(items, o.Object)
	}
	return writeJSON(w, map[string]any{
		"apiVersion": apisv1alpha1.GroupVersion.String(), "kind": "APIResourceSchemaList",
		"metadata": map[string]any{"resourceVersion": v.config.APIs().ResourceVersion(rev)}, "items": items,
	})
}

// read returns a schema, nil if it does not exist any more. Many schemas, or large ones, make the
// request a heavy one.
func (v *Schemas) read(ctx context.Context, s bind.BoundSchema) (*unstructured.Unstructured, error) {
	if fair.Computed(ctx) {
		if err := fair.Continue(ctx); err != nil {
			return nil, err
		}
	}
	o, err := v.config.APIs().Schema(ctx, s)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return o, nil
}

// grow counts the memory of an object in a list, which is kept until it is written.
func grow(ctx context.Context, o *unstructured.Unstructured) error {
	text, err := json.Marshal(o.Object)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return fair.Grow(ctx, 8*int64(len(text))) // decoded, and in JSON
}

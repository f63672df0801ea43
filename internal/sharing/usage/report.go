package usage

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/edge"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/view"
)

const (
	// pageSize is the default and maximum number of consumers in a report.
	pageSize = 500
	// Subresource is the name of the subresource of APIExports that has the report.
	Subresource = "usage"
)

// ServeHTTP serves the usage of an APIExport to users who may get it.
func (m *Meter) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	respond(w, req, m.answer)
}

// respond writes a report, or the error for which there is none.
func respond[T any](w http.ResponseWriter, req *http.Request, answer func(*http.Request) (T, error)) {
	report, err := answer(req)
	if err != nil {
		edge.Refuse(w, req, err)
		return
	}
	text, err := json.Marshal(report)
	if err != nil {
		edge.Refuse(w, req, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // fails only if the client has gone
}

func (m *Meter) answer(req *http.Request) (*apisv1alpha2.APIExportUsage, error) {
	info, _ := request.RequestInfoFrom(req.Context())
	gr := exports.Resource().GroupResource()
	c, err := cluster.One(req.Context())
	_, viewed := view.From(req.Context())
	switch {
	case err != nil, viewed, info.APIVersion != apisv1alpha2.GroupVersion.Version:
		return nil, apierrors.NewNotFound(gr, info.Name+"/"+Subresource)
	case req.Method != http.MethodGet:
		return nil, apierrors.NewMethodNotSupported(gr, info.Verb)
	}
	e, err := m.config.APIs.Exports.Read(req.Context(), exports.Name{Cluster: c, Name: info.Name})
	if err != nil {
		return nil, err
	}
	if e == nil {
		return nil, apierrors.NewNotFound(gr, info.Name)
	}
	if tenancy.IsBuiltIn(c, info.Name) {
		return nil, apierrors.NewBadRequest("the usage of built-in exports is not measured")
	}
	p, err := readPage(req.URL.Query())
	if err != nil {
		return nil, err
	}
	r := m.report(exports.Name{Cluster: c, Name: info.Name}, e.Status.IdentityHash, p)
	return r, m.addRequests(req.Context(), r, e.Status.IdentityHash)
}

// addRequests adds the requests of consumers to a report.
func (m *Meter) addRequests(ctx context.Context, r *apisv1alpha2.APIExportUsage, identity string) error {
	consumers := make([]cluster.Name, len(r.Consumers))
	for i, c := range r.Consumers {
		consumers[i] = cluster.Name(c.Cluster)
	}
	all, err := m.config.Requests.Of(ctx, consumers...)
	if err != nil {
		return err
	}
	for _, c := range r.Consumers {
		for i := range c.Resources {
			u := &c.Resources[i]
			u.Requests = all[cluster.Name(c.Cluster)][countedAs(schema.GroupResource{Group: u.Group, Resource: u.Resource}, identity)]
		}
	}
	return nil
}

// A page is a part of the consumers of an export.
type page struct {
	limit int
	after cluster.Name // of the last consumer of the page before
	only  string       // the path or the cluster of one consumer; empty for all
}

func readPage(query url.Values) (p page, err error) {
	p.only = query.Get("consumer")
	if p.limit, err = edge.PageLimit(query, pageSize, "consumers"); err != nil {
		return p, err
	}
	name, err := base64.RawURLEncoding.DecodeString(query.Get("continue"))
	if err != nil {
		return p, apierrors.NewBadRequest("continue is not from a report of usage; begin again without it")
	}
	p.after = cluster.Name(name)
	return p, nil
}

// report returns the usage of a page of the consumers of an export that has an identity.
func (m *Meter) report(e exports.Name, identity string, p page) *apisv1alpha2.APIExportUsage {
	used, at := m.used(e, identity)
	bound := m.having(e, identity)
	for s := range bound {
		if _, stored := used[s]; !stored {
			used[s] = record{} // a consumer is in the report before its first object
		}
	}
	r := &apisv1alpha2.APIExportUsage{Export: e.Name, Time: *timeOf(at), Consumers: []apisv1alpha2.ConsumerUsage{}}
	r.SetGroupVersionKind(apisv1alpha2.GroupVersion.WithKind("APIExportUsage"))
	maps.DeleteFunc(used, func(s subject, _ record) bool { return s.consumer <= p.after })
	var of *apisv1alpha2.ConsumerUsage // the last of the report
	for _, s := range slices.SortedFunc(maps.Keys(used), compare) {
		if of == nil || of.Cluster != string(s.consumer) {
			path := m.pathOf(s, used[s])
			if p.only != "" && p.only != path && p.only != string(s.consumer) {
				continue
			}
			if len(r.Consumers) == p.limit {
				r.Continue = base64.RawURLEncoding.EncodeToString([]byte(of.Cluster))
				break
			}
			r.Consumers = append(r.Consumers, apisv1alpha2.ConsumerUsage{Cluster: string(s.consumer), Path: path})
			of = &r.Consumers[len(r.Consumers)-1]
		}
		of.Bound = of.Bound || bound[s]
		u := m.resource(s, used[s])
		if bound[s] {
			u.Versions = m.uses.of(s)
		}
		of.Resources = append(of.Resources, u)
	}
	return r
}

// pathOf returns the path of a consumer, or the last one it had.
func (m *Meter) pathOf(s subject, r record) string {
	if path, _, exists := m.around.named(s.consumer); exists {
		return string(path)
	}
	return cmp.Or(r.Path, string(s.consumer))
}

// having returns the resources that consumers have through an export.
func (m *Meter) having(e exports.Name, identity string) map[subject]bool {
	all := map[subject]bool{}
	for _, k := range m.config.APIs.Bindings.To(e) {
		b := m.config.APIs.Bindings.Get(k.Cluster, k.Name)
		if b == nil || b.Export != e {
			continue
		}
		for _, r := range b.Bound {
			if r.Identity == identity {
				all[subjectOf(k.Cluster, r.Resource())] = true
			}
		}
	}
	return all
}

// used returns the records of an export as of the mark, and the mark.
func (m *Meter) used(e exports.Name, identity string) (map[subject]record, int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[subject]record{}
	for s, r := range m.rows[identity] {
		if slices.Contains(r.Exports, e) {
			all[s] = r.until(m.until)
		}
	}
	return all, m.until
}

// resource returns the usage of a resource by the record, with the present counts.
func (m *Meter) resource(s subject, r record) apisv1alpha2.ResourceUsage {
	now := m.config.Store.Feed().Ledger().Usage(s.consumer, s.resource())
	u := apisv1alpha2.ResourceUsage{
		Group: s.Group, Resource: s.Resource, Objects: now.Objects, Bytes: now.Bytes, ObjectSeconds: r.ObjectTime.Seconds, ByteSeconds: r.ByteTime.Seconds,
	}
	if r.Since > 0 {
		u.Since = timeOf(r.Since)
	}
	if r.Ended > 0 {
		u.Until = timeOf(r.Ended)
	}
	return u
}

func compare(a, b subject) int {
	return cmp.Or(cmp.Compare(a.consumer, b.consumer), strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource))
}

func timeOf(millis int64) *metav1.MicroTime {
	t := metav1.NewMicroTime(time.UnixMilli(millis).UTC())
	return &t
}

package usage

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/bind"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/edge"
	"github.com/unforked/kcp/internal/view"
)

const (
	// page is the default and maximum number of consumers in a report.
	page = 500
	// Subresource is the name of the subresource of APIExports that has the report.
	Subresource = "usage"
)

// ServeHTTP serves the usage of an APIExport to users who may get it.
func (m *Meter) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	report, err := m.answer(req)
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
	gr := bind.ExportResource().GroupResource()
	c, err := cluster.One(req.Context())
	_, viewed := view.From(req.Context())
	switch {
	case err != nil, viewed, info.APIVersion != apisv1alpha2.GroupVersion.Version:
		return nil, apierrors.NewNotFound(gr, info.Name+"/"+Subresource)
	case req.Method != http.MethodGet:
		return nil, apierrors.NewMethodNotSupported(gr, info.Verb)
	}
	e, err := m.config.APIs.Export(req.Context(), bind.ExportName{Cluster: c, Name: info.Name})
	if err != nil {
		return nil, err
	}
	if e == nil {
		return nil, apierrors.NewNotFound(gr, info.Name)
	}
	query := req.URL.Query()
	limit, after, err := readPage(query)
	if err != nil {
		return nil, err
	}
	r := m.report(bind.ExportName{Cluster: c, Name: info.Name}, e.Status.IdentityHash)
	if of := query.Get("consumer"); of != "" {
		r.Consumers = slices.DeleteFunc(r.Consumers, func(c apisv1alpha2.ConsumerUsage) bool { return c.Cluster != of && c.Path != of })
	}
	r.Consumers = slices.DeleteFunc(r.Consumers, func(c apisv1alpha2.ConsumerUsage) bool { return c.Cluster <= after })
	if len(r.Consumers) > limit {
		r.Consumers = r.Consumers[:limit]
		r.Continue = base64.RawURLEncoding.EncodeToString([]byte(r.Consumers[limit-1].Cluster))
	}
	return r, nil
}

// readPage returns the maximum number of consumers, and the one after which the page begins.
func readPage(query url.Values) (limit int, after string, err error) {
	limit = page
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return 0, "", apierrors.NewBadRequest("limit must be a number of consumers, 0 for as many as possible")
		}
		limit = min(cmp.Or(n, page), page)
	}
	name, err := base64.RawURLEncoding.DecodeString(query.Get("continue"))
	if err != nil {
		return 0, "", apierrors.NewBadRequest("continue is not from a report of usage; begin again without it")
	}
	return limit, string(name), nil
}

// report returns the usage of all consumers of an export that has an identity.
func (m *Meter) report(e bind.ExportName, identity string) *apisv1alpha2.APIExportUsage {
	used, at := m.used(e, identity)
	r := &apisv1alpha2.APIExportUsage{Export: e.Name, Time: *timeOf(at)}
	r.SetGroupVersionKind(apisv1alpha2.GroupVersion.WithKind("APIExportUsage"))
	has := map[cluster.Name]bool{}
	for _, k := range m.config.APIs.Bindings.To(e) {
		b := m.config.APIs.Bindings.Get(k.Cluster, k.Name)
		if b == nil || b.Export != e {
			continue
		}
		for _, bound := range b.Bound {
			if s := subjectOf(k.Cluster, bound.Resource()); bound.Identity == identity && m.measures(bound.Resource()) {
				has[k.Cluster] = true
				used[s] = used[s] // in the report, also if nothing was stored yet
			}
		}
	}
	consumers := map[cluster.Name]*apisv1alpha2.ConsumerUsage{}
	for _, s := range slices.SortedFunc(maps.Keys(used), compare) {
		of := consumers[s.consumer]
		if of == nil {
			of = &apisv1alpha2.ConsumerUsage{Cluster: string(s.consumer), Path: cmp.Or(used[s].Path, string(s.consumer)), Bound: has[s.consumer]}
			if path, _, exists := m.around.named(s.consumer); exists {
				of.Path = string(path)
			}
			consumers[s.consumer] = of
		}
		of.Resources = append(of.Resources, m.resource(s, used[s]))
	}
	r.Consumers = make([]apisv1alpha2.ConsumerUsage, 0, len(consumers))
	for _, c := range slices.Sorted(maps.Keys(consumers)) {
		r.Consumers = append(r.Consumers, *consumers[c])
	}
	return r
}

// used returns the records of an export as of the mark, and the mark.
func (m *Meter) used(e bind.ExportName, identity string) (map[subject]record, int64) {
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
	u.Versions = m.uses.of(s)
	return u
}

func compare(a, b subject) int {
	return cmp.Or(cmp.Compare(a.consumer, b.consumer), strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource))
}

func timeOf(millis int64) *metav1.MicroTime {
	t := metav1.NewMicroTime(time.UnixMilli(millis).UTC())
	return &t
}

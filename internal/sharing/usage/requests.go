package usage

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/response"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/view"
)

const (
	// talliesAtOnce is the number of tallies that one transaction reads or writes.
	talliesAtOnce = 8 // of at most some 120 KB each; etcd's default limit of a request is 1.5 MiB
	// maxCounted is the maximum number of resources in a tally. Further ones count together. A
	// tenant can make and delete definitions without end.
	maxCounted = 200
	// maxWriters is the maximum number of processes in a tally, the last ones to write it.
	maxWriters = 16
)

// verbs has the number of requests by verb.
type verbs map[string]int64

func (v verbs) add(more verbs) {
	for verb, n := range more {
		v[verb] += n
	}
}

// counts has the requests by resource. The text of a resource is that of [countedAs].
type counts map[string]verbs

// furtherResources stands for the resources of a cluster beyond maxCounted.
const furtherResources = ".*."

// within returns the resource under which a request counts, by the limit.
func (c counts) within(resource string) string {
	if c[resource] == nil && len(c) >= maxCounted {
		return furtherResources
	}
	return resource
}

// of returns the requests of a resource, to be changed.
func (c counts) of(resource string) verbs {
	v := c[resource]
	if v == nil {
		v = verbs{}
		c[resource] = v
	}
	return v
}

// countedAs returns the text of a resource in a tally. An identity and a resource have no dot.
func countedAs(gr schema.GroupResource, identity string) string {
	return strings.Join([]string{identity, gr.Resource, gr.Group}, ".")
}

// counted is the inverse of [countedAs], without the identity.
func counted(text string) schema.GroupResource {
	_, name, _ := strings.Cut(text, ".")
	resource, group, _ := strings.Cut(name, ".")
	return schema.GroupResource{Group: group, Resource: resource}
}

// A tally has the requests to one cluster since it was created. It is stored in the cluster and
// is deleted with it.
type tally struct {
	Requests counts `json:"requests"`
	// Writers has the processes that wrote the tally, and the last batch of each that is in it. So
	// a process finds whether a batch is in the tally if etcd has not answered.
	Writers map[string]written `json:"writers"`
}

// written is the last batch of a process in a tally.
type written struct {
	Batch int64 `json:"batch"`
	At    int64 `json:"at"` // seconds since 1970
}

// tallyOf returns where the tally of a cluster is stored.
func tallyOf(c cluster.Name) keys.Key { return keys.SystemKey(c, "requests", "tally") }

// A batch is what a process adds to the tallies of some clusters at once.
type batch struct {
	number int64
	counts map[cluster.Name]counts
}

// Requests counts the requests to the resources of each cluster. Every process counts those it
// serves, and adds them to the tallies in etcd at intervals and when it ends. A process that is
// killed loses those of one interval. None is counted twice. Memory and writes are in proportion
// to the clusters that had requests in the interval.
type Requests struct {
	store   *store.Store
	process string
	own     string // the user of the server itself

	mu   sync.Mutex
	new  map[cluster.Name]counts // since the last write
	open map[cluster.Name]counts // watches that this process serves

	writing sync.Mutex // held by Write
	last    int64      // number of the last batch
	unsure  []batch    // batches that are in etcd or not
}

// NewRequests returns counters of requests. They leave out the requests of the user with the name
// own, which is the server itself.
func NewRequests(s *store.Store, own string) *Requests {
	return &Requests{store: s, process: string(uuid.NewUUID()), own: own, new: map[cluster.Name]counts{}, open: map[cluster.Name]counts{}}
}

// A countedRequest is a request while it is served.
type countedRequest struct{ resource string }

type countedKey struct{}

// Serving records which custom resource the request of ctx is for.
func Serving(ctx context.Context, r keys.Resource) {
	if one, ok := ctx.Value(countedKey{}).(*countedRequest); ok {
		one.resource = countedAs(r.GroupResource(), r.Identity)
	}
}

// Count counts a request to a resource of one cluster, which next serves. Requests for resources
// that the cluster does not have, and those through views, do not count.
func (r *Requests) Count(w http.ResponseWriter, req *http.Request, next http.Handler) {
	ctx := req.Context()
	c, err := cluster.One(ctx)
	info, _ := request.RequestInfoFrom(ctx)
	user, known := request.UserFrom(ctx)
	_, viewed := view.From(ctx)
	if err != nil || viewed || info == nil || !info.IsResourceRequest || known && user.GetName() == r.own {
		next.ServeHTTP(w, req)
		return
	}
	one := &countedRequest{}
	gr := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	if r.store.Serves(keys.NativeResource(gr)) {
		one.resource = countedAs(gr, "")
	}
	next.ServeHTTP(w, req.WithContext(context.WithValue(ctx, countedKey{}, one)))
	if one.resource == "" {
		return
	}
	r.add(&r.new, c, one.resource, info.Verb, 1)
	if info.Verb == "watch" {
		r.add(&r.open, c, one.resource, info.Verb, 1)
		response.WhenServed(ctx, func() { r.add(&r.open, c, one.resource, info.Verb, -1) })
	}
}

// add changes a count, and removes one that becomes zero.
func (r *Requests) add(to *map[cluster.Name]counts, c cluster.Name, resource, verb string, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := (*to)[c]
	if of == nil {
		of = counts{}
		(*to)[c] = of
	}
	if to == &r.new { // the limits of watches bound those that are open
		resource = of.within(resource)
	}
	v := of.of(resource)
	if v[verb] += n; v[verb] != 0 {
		return
	}
	if delete(v, verb); len(v) == 0 {
		delete(of, resource)
	}
	if len(of) == 0 {
		delete(*to, c)
	}
}

// Write adds the requests since the last call to the tallies in etcd. After an error, the next call
// writes the rest.
func (r *Requests) Write(ctx context.Context) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	if err := r.retry(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	all := r.new
	r.new = map[cluster.Name]counts{}
	r.mu.Unlock()
	for some := range slices.Chunk(slices.Sorted(maps.Keys(all)), talliesAtOnce) {
		r.last++
		b := batch{r.last, map[cluster.Name]counts{}}
		for _, c := range some {
			b.counts[c] = all[c]
		}
		r.unsure = append(r.unsure, b)
	}
	return r.retry(ctx)
}

// retry writes the batches that may not be in etcd. Until it succeeds, no further ones are made.
func (r *Requests) retry(ctx context.Context) error {
	for len(r.unsure) > 0 {
		if err := r.write(ctx, r.unsure[0]); err != nil {
			return err
		}
		r.unsure = r.unsure[1:]
	}
	return nil
}

// write adds a batch to the tallies that do not have it. Clusters that are gone, or are being
// deleted, are left out.
func (r *Requests) write(ctx context.Context, b batch) error {
	of := make([]keys.Key, 0, len(b.counts))
	for c := range b.counts {
		of = append(of, tallyOf(c))
	}
	return r.store.UpdateNotes(ctx, of, func(k keys.Key, value []byte) ([]byte, error) {
		t := readTally(value)
		if t.Writers[r.process].Batch >= b.number {
			return value, nil
		}
		for resource, v := range b.counts[k.Cluster] {
			t.Requests.of(t.Requests.within(resource)).add(v)
		}
		t.Writers[r.process] = written{b.number, time.Now().Unix()}
		for len(t.Writers) > maxWriters {
			oldest := r.process
			for process, w := range t.Writers {
				if process != r.process && (oldest == r.process || w.At < t.Writers[oldest].At) {
					oldest = process
				}
			}
			delete(t.Writers, oldest)
		}
		return json.Marshal(t)
	})
}

// readTally returns a stored tally. One that cannot be read begins again.
func readTally(value []byte) tally {
	t := tally{}
	if len(value) > 0 && json.Unmarshal(value, &t) != nil {
		t = tally{}
	}
	if t.Requests == nil {
		t.Requests = counts{}
	}
	if t.Writers == nil {
		t.Writers = map[string]written{}
	}
	return t
}

// Of returns the stored requests of clusters by resource, as [countedAs] writes it.
func (r *Requests) Of(ctx context.Context, clusters ...cluster.Name) (map[cluster.Name]counts, error) {
	all := map[cluster.Name]counts{}
	for some := range slices.Chunk(clusters, talliesAtOnce) {
		of := make([]keys.Key, len(some))
		for i, c := range some {
			of[i] = tallyOf(c)
		}
		values, err := r.store.ReadNotes(ctx, of)
		if err != nil {
			return nil, err
		}
		for i, c := range some {
			all[c] = readTally(values[i]).Requests
		}
	}
	return all, nil
}

// Watches returns the watches that this process serves, of each resource of a cluster.
func (r *Requests) Watches(c cluster.Name) map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]int64{}
	for resource, v := range r.open[c] {
		for _, n := range v {
			all[resource] += n
		}
	}
	return all
}

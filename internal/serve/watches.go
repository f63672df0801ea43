package serve

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
)

// grace is the time that a watch continues after its resource was removed, so that it
// can deliver the last events.
const grace = time.Second

// A contentWatch is a watch of a custom resource. It ends when the content of the definition
// changes; the client then watches again and gets the new content. Watches in other
// clusters continue, though they share the handler.
type contentWatch struct {
	content *Content
	end     context.CancelFunc
}

// WatchContext returns a context for a watch of resource s in cluster c. The context ends when
// the definition changes. The caller must call the returned function when the watch has
// ended.
func (d *Definitions) WatchContext(ctx context.Context, c cluster.Name, s Served) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	gr := s.Content.GroupResource()
	if _, given := d.given(c).Find(gr); given {
		return ctx, cancel // built into the server, so it never changes
	}
	id, l := definitionID{c, DefinitionName(gr)}, &contentWatch{s.Content, cancel}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.watches[id] == nil {
		d.watches[id] = map[*contentWatch]struct{}{}
	}
	d.watches[id][l] = struct{}{}
	if now, _, ok := d.findLocked(c, gr); !ok || now.WatchHash != s.Content.WatchHash {
		cancel() // it has changed since the caller read it
	}
	return ctx, func() {
		cancel()
		d.mu.Lock()
		defer d.mu.Unlock()
		if delete(d.watches[id], l); len(d.watches[id]) == 0 {
			delete(d.watches, id)
		}
	}
}

// findLocked returns the content and revision of a resource that a cluster defines. The
// caller holds mu.
func (d *Definitions) findLocked(c cluster.Name, gr schema.GroupResource) (*Content, int64, bool) {
	if in := d.clusters[c]; in != nil {
		if i, ok := in.search(DefinitionName(gr)); ok && in.rows[i].content != nil {
			return in.rows[i].content, in.rows[i].revision, true
		}
	}
	return nil, 0, false
}

// end cancels the watches whose content differs from now, which is nil if the definition
// was removed.
func end(all map[*contentWatch]struct{}, now *reading) {
	for l := range all {
		switch {
		case now == nil || now.content == nil:
			time.AfterFunc(grace, l.end)
		case now.content.WatchHash != l.content.WatchHash:
			l.end()
		}
	}
}

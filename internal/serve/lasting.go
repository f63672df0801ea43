package serve

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
)

// grace is how long a watch goes on after its resource has ended, so that it can
// deliver what happened until then.
const grace = time.Second

// A lasting request, a watch, ends when what it was resolved from changes: its
// client asks again, and gets what is served then. Those of other clusters go on,
// though they are served by the same handler.
type lasting struct {
	content *Content
	end     context.CancelFunc
}

// Last returns a context for a watch of a resource in cluster c, which was found
// to be s. It ends when that changes. The function returned must be called when
// the watch has ended.
func (d *Definitions) Last(ctx context.Context, c cluster.Name, s Served) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	gr := s.Content.GroupResource()
	if _, given := d.given(c).Find(gr); given {
		return ctx, cancel // for ever
	}
	id, l := definitionID{c, DefinitionName(gr)}, &lasting{s.Content, cancel}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lasting[id] == nil {
		d.lasting[id] = map[*lasting]struct{}{}
	}
	d.lasting[id][l] = struct{}{}
	if now, _, ok := d.findLocked(c, gr); !ok || now.Lasting != s.Content.Lasting {
		cancel() // it has changed since it was found
	}
	return ctx, func() {
		cancel()
		d.mu.Lock()
		defer d.mu.Unlock()
		if delete(d.lasting[id], l); len(d.lasting[id]) == 0 {
			delete(d.lasting, id)
		}
	}
}

// findLocked returns the content of a resource that a cluster defines.
func (d *Definitions) findLocked(c cluster.Name, gr schema.GroupResource) (*Content, int64, bool) {
	if in := d.clusters[c]; in != nil {
		if i, ok := in.search(DefinitionName(gr)); ok && in.rows[i].content != nil {
			return in.rows[i].content, in.rows[i].revision, true
		}
	}
	return nil, 0, false
}

// end ends the requests whose content is not that of now.
func end(all map[*lasting]struct{}, now *reading) {
	for l := range all {
		switch {
		case now == nil || now.content == nil:
			time.AfterFunc(grace, l.end)
		case now.content.Lasting != l.content.Lasting:
			l.end()
		}
	}
}

package controllers

import (
	"iter"
	"slices"
	"strings"
	"unique"

	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

// An objectID names an object for ever. UIDs alone would not: a copy of a cluster
// may have those of its origin.
type objectID struct {
	cluster cluster.Name
	uid     types.UID
}

// A place is where an object is stored in its cluster. The zero place is nowhere.
type place struct {
	resource        unique.Handle[store.Resource]
	namespace, name string
}

func placeOf(k store.Key) place {
	return place{unique.Make(k.Resource), k.Namespace, k.Name}
}

func (p place) key(c cluster.Name) store.Key {
	return store.Key{Resource: p.resource.Value(), Cluster: c, Namespace: p.namespace, Name: p.name}
}

// A reference is how a dependent names an owner.
type reference struct {
	claim
	uid    types.UID
	blocks bool // its deletion, in the foreground
}

// A claim is what a reference says about an owner besides its UID. The namespace
// is that of the dependent, where an owner with one must be.
type claim struct {
	apiVersion, kind, name, namespace string
}

// An owned is what the graph is told of an object.
type owned struct {
	id     objectID
	at     place
	owners []reference
	phase
}

// A phase says what the deletion of an object waits for, once that began.
type phase struct {
	foreground bool // it waits for the deletion of its dependents
	orphaning  bool // it waits for its dependents to let go of it
}

func (p phase) waits() bool { return p.foreground || p.orphaning }

// A verdict is what is known of a claim.
type verdict uint8

const (
	unchecked verdict = iota
	unserved          // the cluster serves no such kind
	held              // the owner is where the claim says
	wrong             // it is not
)

// The ownership graph holds, of all clusters, the objects that have owners, those
// that are named as owners, and those whose deletion waits for their dependents.
// It only keeps books: it has no lock, and does and reads nothing. What has to be
// looked at because of a change is noted for [ownership.woken].
type ownership struct {
	nodes map[objectID]*node
	awake []objectID
	ticks uint64
}

// A node is an object, or the UID of one of which nothing is known but that
// others name it.
type node struct {
	id objectID
	phase
	at       place  // nowhere if it is not known to exist
	seen     uint64 // another one whenever it appears or goes
	owners   []edge
	claims   []*claims
	byClaim  map[claim]*claims // the same, while they are many
	blocking int               // edges of dependents that block its deletion
}

// claims are the edges to one owner that claim the same of it.
type claims struct {
	claim
	owner *node
	index int // in owner.claims
	found verdict
	edges []*edge
}

// manyOf is from when on what is looked for in a list is looked for in a map: a tenant
// decides how many owners an object names, and how many names an owner is called by.
const manyOf = 16

// find returns the edges to n that claim c, nil if there are none.
func (n *node) find(c claim) *claims {
	if n.byClaim != nil {
		return n.byClaim[c]
	}
	for _, known := range n.claims {
		if known.claim == c {
			return known
		}
	}
	return nil
}

func (n *node) add(c *claims) {
	c.index = len(n.claims)
	n.claims = append(n.claims, c)
	switch {
	case n.byClaim != nil:
		n.byClaim[c.claim] = c
	case len(n.claims) > manyOf:
		n.byClaim = make(map[claim]*claims, len(n.claims))
		for _, known := range n.claims {
			n.byClaim[known.claim] = known
		}
	}
}

func (n *node) remove(c *claims) {
	last := n.claims[len(n.claims)-1]
	last.index, n.claims[c.index] = c.index, last
	n.claims[len(n.claims)-1] = nil
	n.claims = n.claims[:len(n.claims)-1]
	if delete(n.byClaim, c.claim); len(n.claims) <= manyOf/2 {
		n.byClaim = nil
	}
}

// An edge leads from a dependent to its owner. It does not move: others point to it.
type edge struct {
	from     *node
	to       *claims
	index    int // in to.edges
	blocks   bool
	reported bool // that the owner is in another namespace
}

func newOwnership() *ownership { return &ownership{nodes: map[objectID]*node{}} }

// woken returns what has to be looked at since it was last called.
func (g *ownership) woken() []objectID {
	awake := g.awake
	g.awake = nil
	return awake
}

func (g *ownership) wake(n *node) { g.awake = append(g.awake, n.id) }

func (g *ownership) wakeDependents(of *claims) {
	for _, e := range of.edges {
		g.wake(e.from)
	}
}

// tick returns a number that was not given before.
func (g *ownership) tick() uint64 {
	g.ticks++
	return g.ticks
}

// exists reports whether n is known to.
func (n *node) exists() bool { return n.at != place{} }

// dependents returns how many edges lead to n.
func (n *node) dependents() int {
	sum := 0
	for _, c := range n.claims {
		sum += len(c.edges)
	}
	return sum
}

// put takes in that an object exists as given.
func (g *ownership) put(o owned) {
	n := g.nodes[o.id]
	if n == nil {
		if len(o.owners) == 0 && !o.waits() {
			return // what nobody depends on costs nothing
		}
		n = g.node(o.id)
	}
	if !n.exists() {
		n.seen = g.tick()
		g.recheck(n)
	}
	if n.at != o.at {
		n.at = place{o.at.resource, shared(o.at.namespace), strings.Clone(o.at.name)}
	}
	begins := o.foreground && !n.foreground || o.orphaning && !n.orphaning
	n.phase = o.phase
	g.relate(n, o.owners)
	if begins {
		g.wake(n)
		for _, c := range n.claims {
			g.wakeDependents(c)
		}
	}
	g.tidy(n)
}

// drop takes in that an object is gone from where it was.
func (g *ownership) drop(id objectID, from place) {
	n := g.nodes[id]
	if n == nil || n.exists() && n.at != from {
		return
	}
	n.at, n.phase, n.seen = place{}, phase{}, g.tick()
	g.relate(n, nil)
	for _, c := range n.claims {
		c.found = wrong
		g.wakeDependents(c)
	}
	g.tidy(n)
}

// node returns the node of an object, a new one if there is none.
func (g *ownership) node(id objectID) *node {
	n := g.nodes[id]
	if n == nil {
		// Of its own: strings of events are parts of larger ones.
		id = objectID{shared(id.cluster), types.UID(strings.Clone(string(id.uid)))}
		n = &node{id: id, seen: g.tick()}
		g.nodes[id] = n
	}
	return n
}

// recheck forgets what was found of the claims to n.
func (g *ownership) recheck(n *node) {
	for _, c := range n.claims {
		c.found = unchecked
	}
	if len(n.claims) > 0 {
		g.wake(n)
	}
}

// relate makes refs the owners of n.
func (g *ownership) relate(n *node, refs []reference) {
	if slices.EqualFunc(n.owners, refs, func(e edge, r reference) bool { return e.is(r) }) {
		return
	}
	old := n.owners
	was := func(e *edge) int { return slices.IndexFunc(old, func(o edge) bool { return o.to == e.to }) }
	if len(old) > manyOf {
		known := make(map[*claims]int, len(old))
		for i := len(old) - 1; i >= 0; i-- {
			known[old[i].to] = i + 1
		}
		was = func(e *edge) int { return known[e.to] - 1 }
	}
	n.owners = make([]edge, len(refs))
	for i, r := range refs { // before the old ones go, so that what is known of their owners stays
		e := &n.owners[i]
		g.link(e, n, r)
		if at := was(e); at >= 0 {
			e.reported = old[at].reported
			continue
		}
		g.judge(e)
	}
	for i := range old {
		g.unlink(&old[i])
	}
}

// holds reports whether the dependent holds up the deletion of its owner. Nothing
// waits for itself.
func (e *edge) holds() bool { return e.blocks && e.from != e.to.owner }

func (e *edge) is(r reference) bool {
	return e.to.owner.id.uid == r.uid && e.to.claim == r.claim && e.blocks == r.blocks
}

// judge wakes whoever has to act because of a new edge.
func (g *ownership) judge(e *edge) {
	owner := e.to.owner
	if e.to.found == unchecked {
		g.wake(owner)
	}
	if e.to.found == wrong || owner.waits() {
		g.wake(e.from)
	}
}

func (g *ownership) link(e *edge, from *node, r reference) {
	owner := g.node(objectID{from.id.cluster, r.uid})
	to := owner.find(r.claim)
	if to == nil {
		r.namespace = shared(r.namespace)
		to = &claims{claim: r.claim, owner: owner}
		owner.add(to)
	}
	*e = edge{from: from, to: to, index: len(to.edges), blocks: r.blocks}
	to.edges = append(to.edges, e)
	if e.holds() {
		owner.blocking++
	}
}

func (g *ownership) unlink(e *edge) {
	to, owner := e.to, e.to.owner
	last := to.edges[len(to.edges)-1]
	last.index, to.edges[e.index] = e.index, last
	to.edges[len(to.edges)-1] = nil
	to.edges = to.edges[:len(to.edges)-1]
	if len(to.edges) == 0 {
		owner.remove(to)
	}
	if e.holds() {
		if owner.blocking--; owner.blocking == 0 && owner.foreground {
			g.wake(owner)
		}
	}
	if owner.orphaning && len(owner.claims) == 0 {
		g.wake(owner)
	}
	g.tidy(owner)
}

// tidy drops a node that nothing is known of any more that matters.
func (g *ownership) tidy(n *node) {
	if len(n.claims) == 0 && len(n.owners) == 0 && !n.waits() {
		delete(g.nodes, n.id)
	}
}

// settle takes in what was found of a claim to an owner, unless that has appeared
// or gone since: seen says which look at it is meant. It reports whether it was
// taken in. at is where the owner was found, if it was.
func (g *ownership) settle(id objectID, seen uint64, of claim, found verdict, at place) bool {
	n := g.nodes[id]
	if n == nil || n.seen != seen {
		return false
	}
	if at != (place{}) && !n.exists() {
		n.at = at
	}
	c := n.find(of)
	if c == nil {
		return true
	}
	// A dependent whose owners could not all be found was left alone.
	if found == wrong || found == held && c.found == unserved {
		g.wakeDependents(c)
	}
	c.found = found
	return true
}

// due returns everything that has to be looked at when nothing is known of what
// was looked at before.
func (g *ownership) due() []objectID {
	var all []objectID
	for id, n := range g.nodes {
		if n.due() {
			all = append(all, id)
		}
	}
	return all
}

func (n *node) due() bool {
	if n.waits() {
		return true
	}
	for _, c := range n.claims {
		if c.found == unchecked || c.found == unserved {
			return true
		}
	}
	return slices.ContainsFunc(n.owners, func(e edge) bool { return e.to.found == wrong || e.to.owner.waits() })
}

// A look is what the graph knows of one object at one time.
type look struct {
	id         objectID
	at         place // nowhere if it is not known to exist
	seen       uint64
	unsettled  []claim // to it
	dependents int     // how many edges lead to it
	blocking   int     // those of them that block its deletion
	owned      bool    // it has owners
	phase
	// leaving are the owners that wait for it to let go of them.
	leaving []types.UID
}

// look returns what is known of an object.
func (g *ownership) look(id objectID) (look, bool) {
	n := g.nodes[id]
	if n == nil {
		return look{}, false
	}
	l := look{id: n.id, at: n.at, seen: n.seen, dependents: n.dependents(), blocking: n.blocking, owned: len(n.owners) > 0, phase: n.phase}
	for _, c := range n.claims {
		if c.found == unchecked || c.found == unserved {
			l.unsettled = append(l.unsettled, c.claim)
		}
	}
	for _, e := range n.owners {
		if owner := e.to.owner; owner.orphaning {
			l.leaving = append(l.leaving, owner.id.uid)
		}
	}
	slices.Sort(l.leaving)
	l.leaving = slices.Compact(l.leaving)
	return l, true
}

// circular reports whether a dependent of an object waits for its own dependents,
// so that they may wait for each other.
func (g *ownership) circular(id objectID) bool {
	n := g.nodes[id]
	return n != nil && slices.ContainsFunc(n.claims, func(c *claims) bool {
		return slices.ContainsFunc(c.edges, func(e *edge) bool { return e.from.foreground })
	})
}

// misplaced returns the references of an object to owners in another namespace of which
// nobody was told yet.
func (g *ownership) misplaced(id objectID) []reference {
	var all []reference
	for e := range g.misplacedEdges(id) {
		all = append(all, reference{claim: e.to.claim, uid: e.to.owner.id.uid})
	}
	return all
}

// reported takes in that somebody was told of a reference that is misplaced.
func (g *ownership) reported(id objectID, r reference) {
	for e := range g.misplacedEdges(id) {
		if e.to.claim == r.claim && e.to.owner.id.uid == r.uid {
			e.reported = true
		}
	}
}

func (g *ownership) misplacedEdges(id objectID) iter.Seq[*edge] {
	return func(yield func(*edge) bool) {
		n := g.nodes[id]
		if n == nil {
			return
		}
		for i := range n.owners {
			e := &n.owners[i]
			owner := e.to.owner
			if !e.reported && owner.exists() && owner.at.namespace != "" && owner.at.namespace != n.at.namespace && !yield(e) {
				return
			}
		}
	}
}

// shared returns s as a string that all that are equal share.
func shared[S ~string](s S) S { return S(unique.Make(string(s)).Value()) }

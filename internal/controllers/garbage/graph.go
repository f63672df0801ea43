package garbage

import (
	"iter"
	"slices"
	"strings"
	"unique"

	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

// An objectID identifies an object permanently. A UID alone is not enough: a copy of a
// cluster may have the UIDs of its origin.
type objectID struct {
	cluster cluster.Name
	uid     types.UID
}

// A place is the key of an object within its cluster. The zero value means unknown.
type place struct {
	resource        unique.Handle[keys.Resource]
	namespace, name string
}

func placeOf(k keys.Key) place {
	return place{unique.Make(k.Resource), k.Namespace, k.Name}
}

func (p place) key(c cluster.Name) keys.Key {
	return keys.Key{Resource: p.resource.Value(), Cluster: c, Namespace: p.namespace, Name: p.name}
}

// A reference is an owner reference of a dependent.
type reference struct {
	claim
	uid    types.UID
	blocks bool // blocks the foreground deletion of the owner
}

// A claim is the part of a reference besides the UID of the owner. namespace is that of the
// dependent. Namespaced owners must be in the same namespace.
type claim struct {
	apiVersion, kind, name, namespace string
}

// An owned is the state of an object as input of the graph.
type owned struct {
	id     objectID
	at     place
	owners []reference
	phase
}

// A phase is the state of the deletion of an object.
type phase struct {
	foreground bool // waits for the deletion of its dependents
	orphaning  bool // waits for the removal of the references of its dependents
}

func (p phase) waits() bool { return p.foreground || p.orphaning }

// A verdict is the result of the check of a claim.
type verdict uint8

const (
	unchecked verdict = iota
	unserved          // the cluster does not serve the kind
	held              // the owner exists as claimed
	wrong             // the owner does not exist as claimed
)

// The ownership graph has the objects of all clusters with owners, with references to them,
// or with a deletion that waits for dependents. It is a pure data structure without lock
// and I/O. It collects the objects that need a check after a change; [ownership.woken]
// returns them.
type ownership struct {
	nodes map[objectID]*node
	awake []objectID
	ticks uint64
	links map[cluster.Name]int // edges, by cluster
}

// A node is an object, or the UID of an unknown object with references to it.
type node struct {
	id objectID
	phase
	at       place  // zero if the object is not known to exist
	seen     uint64 // changes whenever the object is created or deleted
	owners   []edge
	claims   []*claims
	byClaim  map[claim]*claims // index of claims, if they are many
	blocking int               // edges of dependents that block its deletion
}

// claims are the edges to one owner with the same claim.
type claims struct {
	claim
	owner *node
	index int // in owner.claims
	found verdict
	edges []*edge
}

// manyOf is the length from which lists are indexed by a map. Users decide how many owners
// an object references, and with how many different claims an owner is referenced.
const manyOf = 16

// find returns the edges to n with claim c, nil if there are none.
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

// An edge leads from a dependent to its owner. It must not move in memory, because claims
// point to it.
type edge struct {
	from     *node
	to       *claims
	index    int // in to.edges
	blocks   bool
	reported bool // an event about the owner's other namespace was created
}

func newOwnership() *ownership {
	return &ownership{nodes: map[objectID]*node{}, links: map[cluster.Name]int{}}
}

// woken returns the objects that need a check because of changes since the last call.
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

// tick returns a new number.
func (g *ownership) tick() uint64 {
	g.ticks++
	return g.ticks
}

// exists reports whether n is known to exist.
func (n *node) exists() bool { return n.at != place{} }

// dependents returns the number of edges to n.
func (n *node) dependents() int {
	sum := 0
	for _, c := range n.claims {
		sum += len(c.edges)
	}
	return sum
}

// put adds or updates an object.
func (g *ownership) put(o owned) {
	n := g.nodes[o.id]
	if n == nil {
		if len(o.owners) == 0 && !o.waits() {
			return // objects without references need no node
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

// drop records the deletion of an object at a place.
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
		// Clone the strings, which are parts of larger ones.
		id = objectID{shared(id.cluster), types.UID(strings.Clone(string(id.uid)))}
		n = &node{id: id, seen: g.tick()}
		g.nodes[id] = n
	}
	return n
}

// recheck marks all claims to n as unchecked.
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
	for i, r := range refs { // before the old edges are removed, to keep the nodes of their owners
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

// holds reports whether the dependent blocks the deletion of its owner. Objects do not
// block themselves.
func (e *edge) holds() bool { return e.blocks && e.from != e.to.owner }

func (e *edge) is(r reference) bool {
	return e.to.owner.id.uid == r.uid && e.to.claim == r.claim && e.blocks == r.blocks
}

// judge wakes the objects that need a check because of a new edge.
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
	g.links[owner.id.cluster]++
	to.edges = append(to.edges, e)
	if e.holds() {
		owner.blocking++
	}
}

func (g *ownership) unlink(e *edge) {
	to, owner := e.to, e.to.owner
	if g.links[owner.id.cluster]--; g.links[owner.id.cluster] == 0 {
		delete(g.links, owner.id.cluster)
	}
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

// tidy removes a node without edges whose deletion waits for nothing.
func (g *ownership) tidy(n *node) {
	if len(n.claims) == 0 && len(n.owners) == 0 && !n.waits() {
		delete(g.nodes, n.id)
	}
}

// settle records the verdict of a claim to an owner, and reports whether it did. It does not
// if the owner was created or deleted since the check, that is, if seen has changed. at is
// the place where the owner was found, or zero.
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
	// Dependents with unserved owners were not collected, so check them now.
	if found == wrong || found == held && c.found == unserved {
		g.wakeDependents(c)
	}
	c.found = found
	return true
}

// due returns all objects that need a check if no earlier checks are known.
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

// A look is a snapshot of one object in the graph.
type look struct {
	id         objectID
	at         place // zero if the object is not known to exist
	seen       uint64
	unsettled  []claim // claims to the object without a verdict
	sought     bool    // a dependent with such a claim has at most manyOf owners
	dependents int     // number of edges to the object
	blocking   int     // number of these that block its deletion
	owned      bool    // the object has owners
	phase
	// leaving are the owners whose references must be removed from the object.
	leaving []types.UID
}

// look returns a snapshot of an object, and whether the graph has it.
func (g *ownership) look(id objectID) (look, bool) {
	n := g.nodes[id]
	if n == nil {
		return look{}, false
	}
	l := look{id: n.id, at: n.at, seen: n.seen, dependents: n.dependents(), blocking: n.blocking, owned: len(n.owners) > 0, phase: n.phase}
	for _, c := range n.claims {
		if c.found == unchecked || c.found == unserved {
			l.unsettled = append(l.unsettled, c.claim)
			l.sought = l.sought || slices.ContainsFunc(c.edges, func(e *edge) bool { return len(e.from.owners) <= manyOf })
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

// circular reports whether a dependent of an object waits for its own dependents. Then both
// may wait for each other.
func (g *ownership) circular(id objectID) bool {
	n := g.nodes[id]
	return n != nil && slices.ContainsFunc(n.claims, func(c *claims) bool {
		return slices.ContainsFunc(c.edges, func(e *edge) bool { return e.from.foreground })
	})
}

// misplaced returns the references of an object to owners in another namespace that were not
// reported.
func (g *ownership) misplaced(id objectID) []reference {
	var all []reference
	for e := range g.misplacedEdges(id) {
		all = append(all, reference{claim: e.to.claim, uid: e.to.owner.id.uid})
	}
	return all
}

// reported marks a misplaced reference as reported.
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

// shared returns the canonical copy of s, so that equal strings share memory.
func shared[S ~string](s S) S { return S(unique.Make(string(s)).Value()) }

// Package cluster hides the grammar of logical cluster names and paths, and where
// requests and objects carry them.
package cluster

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotation is the key of the annotation that holds the name of an object's
// logical cluster. The server computes it from the storage key; it is never stored.
const Annotation = "kcp.io/cluster"

// A Name identifies a logical cluster and never changes. It is a segment of storage
// keys, so every Name must follow the grammar of [ParseName].
type Name string

const (
	// All means every logical cluster, in list and watch requests.
	// No object is stored under it.
	All Name = "*"

	// Root is the cluster at the top of the tree of workspaces.
	Root Name = "root"

	// Admin holds RBAC that applies in every cluster, and the server's own leases.
	Admin Name = "system:admin"

	// BoundDefinitions holds a CustomResourceDefinition for each schema that a binding
	// uses. Its name is the UID of the APIResourceSchema.
	BoundDefinitions Name = "system:bound-crds"

	// Shard holds objects that are local to this shard.
	Shard Name = "system:shard"
)

// systemPrefix begins the names of clusters that belong to the server. Only these
// names contain colons.
const systemPrefix = "system:"

const nameGrammar = `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])`

var (
	nameRE = regexp.MustCompile(`^` + nameGrammar + `$`)
	wordRE = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
)

// ParseName checks that s is the name of one logical cluster: 2 to 63 lower-case
// letters, digits and dashes, beginning and ending with a letter or digit. The name of
// a system cluster is "system:" and such words, joined with colons.
func ParseName(s string) (Name, error) {
	rest, system := strings.CutPrefix(s, systemPrefix)
	if !system && nameRE.MatchString(s) {
		return Name(s), nil
	}
	if system && len(s) <= 63 {
		valid := true
		for word := range strings.SplitSeq(rest, ":") {
			valid = valid && wordRE.MatchString(word)
		}
		if valid {
			return Name(s), nil
		}
	}
	return "", fmt.Errorf("logical cluster name %q does not match the regex ^%s$", s, nameGrammar)
}

// System reports whether n belongs to the server rather than to a workspace.
func (n Name) System() bool { return strings.HasPrefix(string(n), systemPrefix) }

// NewName returns a random name: the first 16 characters of the base36 form of the
// SHA-224 of 32 random bytes. It does not check that the name is unused.
func NewName() Name {
	var seed [32]byte
	_, _ = rand.Read(seed[:]) // never fails: crypto/rand ends the program instead
	sum := sha256.Sum224(seed[:])
	text := new(big.Int).SetBytes(sum[:]).Text(36)
	return Name(strings.Repeat("0", max(0, 16-len(text))) + text[:min(16, len(text))])
}

// A Path locates a cluster in the workspace tree: a [Name], then the names of
// the workspaces below it, joined with colons. Unlike a Name it may change.
type Path string

// ParsePath checks that s is a path: words of at most 63 lower-case letters,
// digits and dashes, joined with colons. The first word is a [Name], or "user".
// After "user" comes a user name, which stands for the home workspace of that user.
// A user name that is not a valid word is replaced as in [HomePath].
func ParsePath(s string) (Path, error) {
	switch first, rest, nested := strings.Cut(s, ":"); {
	case strings.HasPrefix(s, systemPrefix):
		n, err := ParseName(s)
		return Path(n), err
	case nested && first == homes:
		return parseHome(s)
	default:
		n, err := ParseName(first)
		if err != nil || !nested {
			return Path(n), err
		}
		return Path(n).joined(s, rest)
	}
}

// joined appends the words of rest to p, and checks each. Errors quote s, the whole
// path that is being parsed.
func (p Path) joined(s, rest string) (Path, error) {
	for nested := true; nested; {
		var word string
		if word, rest, nested = strings.Cut(rest, ":"); !wordRE.MatchString(word) {
			return "", fmt.Errorf("logical cluster path %q does not match the regex ^%s(:[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$", s, nameGrammar)
		}
		p = p.Join(word)
	}
	return p, nil
}

// Name returns p as a [Name], and whether p is one: a path of one word, or that of a
// system cluster.
func (p Path) Name() (Name, bool) {
	s := string(p)
	return Name(s), strings.HasPrefix(s, systemPrefix) || !strings.Contains(s, ":")
}

// Split returns the name of the cluster that p begins with, and the names of the
// workspaces below it. For a path that begins with "user:" the cluster is the user's home.
func (p Path) Split() (Name, []string) {
	if n, ok := p.Name(); ok {
		return n, nil
	}
	if home, words, ok := p.inHome(); ok {
		return home, words
	}
	words := strings.Split(string(p), ":")
	return Name(words[0]), words[1:]
}

// Join returns the path of the workspace called name in the cluster at p.
func (p Path) Join(name string) Path { return p + Path(":"+name) }

// Parent returns the path of the cluster above p, and whether there is one.
func (p Path) Parent() (Path, bool) {
	if _, ok := p.Name(); ok {
		return "", false
	}
	if _, words, ok := p.inHome(); ok && len(words) == 0 {
		return "", false
	}
	return p[:strings.LastIndexByte(string(p), ':')], true
}

type contextKey struct{}

// With returns a context for a request to cluster n, or to [All].
func With(ctx context.Context, n Name) context.Context {
	return context.WithValue(ctx, contextKey{}, n)
}

// From returns the cluster of a request, which may be [All], and whether it has one.
func From(ctx context.Context) (Name, bool) {
	n, ok := ctx.Value(contextKey{}).(Name)
	return n, ok
}

// One returns the cluster of a request, and an error if the request has no cluster or
// is for [All].
func One(ctx context.Context) (Name, error) {
	switch n, ok := From(ctx); {
	case !ok:
		return "", errors.New("no logical cluster in this request; use a server URL that ends in /clusters/<name or path>")
	case n == All:
		return "", fmt.Errorf("this request is for one logical cluster, not for all of them (%q)", All)
	default:
		return n, nil
	}
}

// IsAll reports whether a request is for [All] clusters.
func IsAll(ctx context.Context) bool {
	n, _ := From(ctx)
	return n == All
}

// Of returns the cluster of a served object, empty if it has no [Annotation].
func Of(o metav1.Object) Name { return Name(o.GetAnnotations()[Annotation]) }

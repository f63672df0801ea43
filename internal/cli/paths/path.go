// Package paths reads workspace paths as users type them: relative to the current workspace,
// absolute, or in the older form without a colon.
package paths

import (
	"fmt"
	"slices"
	"strings"

	"github.com/unforked/kcp/internal/cluster"
)

// homes is the first word of the paths of home workspaces. The second word is the name of
// a user, not of a workspace, so a home has no parent.
const homes = "user"

// Resolve returns the absolute path that arg names in the workspace current:
//
//	.  ..  name  name:name  ..:name    relative to current
//	:                                  the root
//	:root:name  :system:admin          absolute
//	root  root:name                    absolute, see absoluteForm
//
// It does not resolve the home (~): only the server knows its path.
func Resolve(current cluster.Path, arg string) (cluster.Path, error) {
	if arg == ":" {
		return cluster.Path(cluster.Root), nil
	}
	at, words := current, strings.Split(arg, ":")
	if rest, ok := strings.CutPrefix(Absolute(arg), ":"); ok {
		words = strings.Split(rest, ":")
		n := topWords(words)
		top, err := cluster.ParsePath(strings.Join(words[:n], ":"))
		if err != nil {
			return "", InvalidName(words[0])
		}
		at, words = top, words[n:]
	}
	for _, word := range words {
		next, err := Step(at, word)
		if err != nil {
			return "", err
		}
		at = next
	}
	return at, nil
}

// Absolute adds the leading colon if arg is in the older form of absolute paths
// ("root", "root:org"). The path of a child workspace named root is ".:root".
func Absolute(arg string) string {
	if arg == string(cluster.Root) || strings.HasPrefix(arg, string(cluster.Root)+":") {
		return ":" + arg
	}
	return arg
}

// topWords returns the number of words at the start of an absolute path that name one
// cluster.
func topWords(words []string) int {
	switch words[0] {
	case homes:
		return min(2, len(words))
	case "system":
		if dots := slices.IndexFunc(words, IsDots); dots > 0 {
			return dots
		}
		return len(words)
	default:
		return 1
	}
}

// IsDots reports whether a word of a path is relative: "." or "..".
func IsDots(word string) bool { return word == "." || word == ".." }

// Step resolves one word of a path.
func Step(from cluster.Path, word string) (cluster.Path, error) {
	switch word {
	case ".":
		return from, nil
	case "..":
		up, _, ok := Parent(from)
		if !ok {
			return "", fmt.Errorf("workspace %q has no parent; use an absolute path: kubectl ws :root", from)
		}
		return up, nil
	}
	if n, ok := from.Name(); ok && n.System() {
		return "", fmt.Errorf("there are no workspaces in %q; use an absolute path: kubectl ws :root", from)
	}
	to, err := cluster.ParsePath(string(from.Join(word)))
	if err != nil {
		return "", InvalidName(word)
	}
	return to, nil
}

// InvalidName returns the error for a word that cannot be a workspace name.
func InvalidName(word string) error {
	if meant := strings.ReplaceAll(strings.TrimSuffix(word, "/"), "/", ":"); meant != word && meant != "" {
		return fmt.Errorf("%q is not a workspace name: names in a path are separated by colons, as in %q", word, meant)
	}
	return fmt.Errorf("%q is not a workspace name: use lower-case letters, digits and dashes, and colons between the names of a path, as in :root:org:team", word)
}

// Parent returns the cluster with the Workspace object of p and the name of that object.
// It reports false if p has no parent.
func Parent(p cluster.Path) (up cluster.Path, name string, ok bool) {
	if up, ok = p.Parent(); !ok || up == homes {
		return "", "", false
	}
	return up, string(p[len(up)+1:]), true
}

// TopOf returns the topmost cluster of the tree that contains p.
func TopOf(p cluster.Path) cluster.Path {
	for {
		up, _, ok := Parent(p)
		if !ok {
			return p
		}
		p = up
	}
}

// ParseReference parses a reference to an object of a workspace, [path:]name. The path may be
// absolute, without a colon at its start, too, or begin with dots. Without one, path is empty.
func ParseReference(here cluster.Path, text string) (path cluster.Path, name string, ok bool) {
	i := strings.LastIndexByte(text, ':')
	name = text[i+1:]
	if i < 0 || name == "" {
		return "", name, name != ""
	}
	before := text[:i]
	if first, _, _ := strings.Cut(before, ":"); !IsDots(first) && first != "" {
		before = ":" + before
	}
	path, err := Resolve(here, before)
	return path, name, err == nil
}

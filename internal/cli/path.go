package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/unforked/kcp/internal/cluster"
)

// homes is the first word of the paths of home workspaces. The second word is the name of
// a user, not of a workspace, so a home has no parent.
const homes = "user"

// resolve returns the absolute path that arg names in the workspace current:
//
//	.  ..  name  name:name  ..:name    relative to current
//	:                                  the root
//	:root:name  :system:admin          absolute
//	root  root:name                    absolute, see absoluteForm
//
// It does not resolve the home (~): only the server knows its path.
func resolve(current cluster.Path, arg string) (cluster.Path, error) {
	if arg == ":" {
		return cluster.Path(cluster.Root), nil
	}
	at, words := current, strings.Split(arg, ":")
	if rest, ok := strings.CutPrefix(absoluteForm(arg), ":"); ok {
		words = strings.Split(rest, ":")
		n := topWords(words)
		top, err := cluster.ParsePath(strings.Join(words[:n], ":"))
		if err != nil {
			return "", badName(words[0])
		}
		at, words = top, words[n:]
	}
	for _, word := range words {
		next, err := step(at, word)
		if err != nil {
			return "", err
		}
		at = next
	}
	return at, nil
}

// absoluteForm adds the leading colon if arg is in the older form of absolute paths
// ("root", "root:org"). The path of a child workspace named root is ".:root".
func absoluteForm(arg string) string {
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
		if dots := slices.IndexFunc(words, isDots); dots > 0 {
			return dots
		}
		return len(words)
	default:
		return 1
	}
}

func isDots(word string) bool { return word == "." || word == ".." }

// step resolves one word of a path.
func step(from cluster.Path, word string) (cluster.Path, error) {
	switch word {
	case ".":
		return from, nil
	case "..":
		up, _, ok := parent(from)
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
		return "", badName(word)
	}
	return to, nil
}

func badName(word string) error {
	return fmt.Errorf("%q is not a workspace name: use lower-case letters, digits and dashes, and colons between the names of a path, as in :root:org:team", word)
}

// parent returns the cluster with the Workspace object of p and the name of that object.
// It reports false if p has no parent.
func parent(p cluster.Path) (up cluster.Path, name string, ok bool) {
	if up, ok = p.Parent(); !ok || up == homes {
		return "", "", false
	}
	return up, string(p[len(up)+1:]), true
}

// topOf returns the topmost cluster of the tree that contains p.
func topOf(p cluster.Path) cluster.Path {
	for {
		up, _, ok := parent(p)
		if !ok {
			return p
		}
		p = up
	}
}

// parseReference parses a reference to an object of a workspace, [path:]name. The path may be
// absolute, without a colon at its start, too, or begin with dots. Without one, path is empty.
func parseReference(here cluster.Path, text string) (path cluster.Path, name string, ok bool) {
	i := strings.LastIndexByte(text, ':')
	name = text[i+1:]
	if i < 0 || name == "" {
		return "", name, name != ""
	}
	before := text[:i]
	if first, _, _ := strings.Cut(before, ":"); !isDots(first) && first != "" {
		before = ":" + before
	}
	path, err := resolve(here, before)
	return path, name, err == nil
}

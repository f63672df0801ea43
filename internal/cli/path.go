package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/unforked/kcp/internal/cluster"
)

// homes begins the paths of home workspaces: the word after it is the name of
// a user, not of a workspace, so that there is no cluster above such a home.
const homes = "user"

// resolve returns the path that arg means to somebody who is at current:
//
//	.  ..  name  name:name  ..:name    from current
//	:                                  the root
//	:root:name  :system:admin          from the top
//	root  root:name                    from the top too, see absoluteForm
//
// The home (~) is not for resolve: only the server knows where it is.
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

// absoluteForm returns arg in the form with a leading colon if it is the older
// way to write an absolute path ("root", "root:org"), and arg itself otherwise.
// A child workspace that is called root is reached by ".:root".
func absoluteForm(arg string) string {
	if arg == string(cluster.Root) || strings.HasPrefix(arg, string(cluster.Root)+":") {
		return ":" + arg
	}
	return arg
}

// topWords returns how many words of an absolute path name the cluster it starts from.
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

// step follows one word of a path.
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
	return fmt.Errorf("%q is not a workspace name: names are lower-case letters, digits and dashes, in paths joined by colons as in :root:org:team", word)
}

// parent returns the cluster that holds the Workspace object of p and the name
// of that object, and whether there is one.
func parent(p cluster.Path) (up cluster.Path, name string, ok bool) {
	if up, ok = p.Parent(); !ok || up == homes {
		return "", "", false
	}
	return up, string(p[len(up)+1:]), true
}

// topOf returns the cluster at the top of the tree that p is in.
func topOf(p cluster.Path) cluster.Path {
	for {
		up, _, ok := parent(p)
		if !ok {
			return p
		}
		p = up
	}
}

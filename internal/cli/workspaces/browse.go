package workspaces

import (
	"context"
	"fmt"
	"strings"

	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cli/paths"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

// A key is a key that a user pressed in a browser, by its meaning.
type key int

const (
	noKey key = iota
	keyUp
	keyDown
	keyOpen
	keyClose
	keyFirst
	keyLast
	keyGo
	keyLeave
	keyInterrupt
)

// A browser is a tree of workspaces with a cursor. It does no input and output: its
// methods take keys and return lines.
type browser struct {
	list   func(context.Context, cluster.Path) ([]*tenancy.Workspace, error)
	top    *branch
	at     *branch // the cursor
	scroll int     // number of lines scrolled out at the top
}

// A branch is a workspace in a browser.
type branch struct {
	node
	up     *branch // nil at the top
	below  []*branch
	looked bool // below and err are set
	open   bool
}

// browse returns a browser for the workspaces below top. The cursor is on the workspace
// at, or on the deepest workspace above it whose children the user may list.
func browse(ctx context.Context, list func(context.Context, cluster.Path) ([]*tenancy.Workspace, error), top, at cluster.Path) *browser {
	b := &browser{list: list, top: &branch{node: node{path: top}}}
	b.at = b.top
	b.unfold(ctx)
	for b.at.path != at {
		next := b.at.toward(at)
		if next == nil {
			break
		}
		b.at = next
		if next.path != at {
			b.unfold(ctx)
		}
	}
	return b
}

// toward returns the child of n that is path or above it, or nil.
func (n *branch) toward(path cluster.Path) *branch {
	for _, child := range n.below {
		if child.path == path || strings.HasPrefix(string(path), string(child.path)+":") {
			return child
		}
	}
	return nil
}

// unfold shows the children of the workspace at the cursor.
func (b *browser) unfold(ctx context.Context) {
	n := b.at
	if !n.looked && (n.object == nil || listable(n.object)) {
		var all []*tenancy.Workspace
		all, n.err = b.list(ctx, n.path)
		for _, w := range all {
			n.below = append(n.below, &branch{node: node{path: n.path.Join(w.Name), object: w}, up: n})
		}
	}
	n.looked, n.open = true, true
}

// press handles a key. It reports whether the user chose the workspace at the cursor, and
// whether the browser is to be closed.
func (b *browser) press(ctx context.Context, k key) (chosen, over bool) {
	shown := b.shown()
	i := 0
	for shown[i].branch != b.at {
		i++
	}
	switch k {
	case keyUp:
		b.at = shown[max(i-1, 0)].branch
	case keyDown:
		b.at = shown[min(i+1, len(shown)-1)].branch
	case keyFirst:
		b.at = shown[0].branch
	case keyLast:
		b.at = shown[len(shown)-1].branch
	case keyOpen:
		if !b.at.open {
			b.unfold(ctx)
		} else if len(b.at.below) > 0 {
			b.at = b.at.below[0]
		}
	case keyClose:
		if b.at.open && len(b.at.below) > 0 {
			b.at.open = false
		} else if b.at.up != nil {
			b.at = b.at.up
		}
	case keyGo:
		return true, true
	case keyLeave, keyInterrupt:
		return false, true
	}
	return false, false
}

type shownBranch struct {
	*branch
	lead string
}

// shown returns the branches that are unfolded, each with the lines that lead to it.
func (b *browser) shown() (all []shownBranch) {
	var add func(n *branch, lead, below string)
	add = func(n *branch, lead, below string) {
		all = append(all, shownBranch{n, lead})
		if !n.open {
			return
		}
		for i, child := range n.below {
			if i < len(n.below)-1 {
				add(child, below+"├── ", below+"│   ")
			} else {
				add(child, below+"└── ", below+"    ")
			}
		}
	}
	add(b.top, "", "")
	return all
}

const browserHelp = "Up/Down: move  Right: open  Left: close  Enter: go there  q: leave"

// lines returns the lines for a screen of that size, and the index of the cursor's line.
func (b *browser) lines(width, height int) (lines []string, cursor int) {
	shown := b.shown()
	at := 0
	for shown[at].branch != b.at {
		at++
	}
	room := max(height-2, 1) // without the help and the line of the terminal's own cursor
	b.scroll = max(min(b.scroll, at, len(shown)-room), at-room+1, 0)
	lines = append(lines, clip(browserHelp, width))
	for _, n := range shown[b.scroll:min(b.scroll+room, len(shown))] {
		lines = append(lines, clip(n.lead+n.label(), width))
	}
	return lines, 1 + at - b.scroll
}

func (n *branch) label() string {
	name := string(n.path)
	if n.up != nil {
		_, name, _ = paths.Parent(n.path)
	}
	if w := n.object; w != nil && remote.TypeName(w) != "" {
		name += " [" + remote.TypeName(w) + "]"
	}
	remark := n.remark()
	switch {
	case remark != "":
		return fmt.Sprintf("%s (%s)", name, remark)
	case !n.looked || !n.open && len(n.below) > 0:
		return name + " +"
	}
	return name
}

// clip shortens a line so that it does not wrap.
func clip(line string, width int) string {
	runes := []rune(line)
	if len(runes) < width {
		return line
	}
	return string(runes[:max(width-1, 0)])
}

// keys parses the bytes from a terminal. The rest is an incomplete escape sequence.
func keys(sent []byte) (pressed []key, rest []byte) {
	for len(sent) > 0 {
		if k, n := escape(sent); n > 0 {
			pressed, sent = append(pressed, k), sent[n:]
			continue
		}
		if len(sent) == 2 && sent[0] == '\x1b' && (sent[1] == '[' || sent[1] == 'O') {
			return pressed, sent
		}
		pressed, sent = append(pressed, plainKey(sent[0])), sent[1:]
	}
	return pressed, nil
}

// escape parses the escape sequence at the start of sent. It returns its key and its
// length; the length is 0 if there is none.
func escape(sent []byte) (key, int) {
	if len(sent) < 3 || sent[0] != '\x1b' || sent[1] != '[' && sent[1] != 'O' {
		return noKey, 0
	}
	end := 2
	for end < len(sent)-1 && (sent[end] < '@' || sent[end] > '~') {
		end++
	}
	k := map[byte]key{'A': keyUp, 'B': keyDown, 'C': keyOpen, 'D': keyClose, 'H': keyFirst, 'F': keyLast}[sent[end]]
	return k, end + 1
}

func plainKey(sent byte) key {
	switch sent {
	case 'k':
		return keyUp
	case 'j':
		return keyDown
	case 'l', ' ':
		return keyOpen
	case 'h':
		return keyClose
	case 'g':
		return keyFirst
	case 'G':
		return keyLast
	case '\r', '\n':
		return keyGo
	case 'q', '\x04', '\x1b': // also Ctrl-D, and Escape alone
		return keyLeave
	case '\x03': // Ctrl-C, which sends no signal in raw mode
		return keyInterrupt
	}
	return noKey
}

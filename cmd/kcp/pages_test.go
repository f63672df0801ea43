package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPages types the commands of README.md and of each page in docs into a bash, from
// top to bottom, in an empty home. Readers get what the pages show:
//
//   - A block of sh holds commands. Each must succeed, unless it ends with the comment
//     "# fails: TEXT"; then it must fail and print TEXT.
//   - A block of text right after it shows output of its last command. "…" stands for
//     anything.
//   - A block after a line that ends with a file name in backquotes and a colon, such as
//     "Save this as `team.yaml`:", is that file.
//   - "kcp start" runs in the background, as in a second terminal, at a free port. It
//     ends at the comment "# Press Ctrl-C …", before another "kcp start", and with the
//     page.
//   - A command with a comment such as '# at "ready" type :q' has a terminal. When the
//     terminal has shown the text, the test types the rest and Enter.
//   - "provider" is the program in examples/provider.
//   - "kind create cluster" and "docker pause" are functions, see kindOfPages.
//   - A section with programs that are not here is skipped; see foreign.
func TestPages(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the pages show commands of bash")
	}
	bin := clientPrograms(t) + string(os.PathListSeparator) + exampleProgram(t)
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, filepath.Join("..", "..", "README.md")) {
		blocks, err := readPage(page)
		if err != nil {
			t.Errorf("%s: %v", page, err)
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			t.Parallel()
			r := &reader{t: t, page: filepath.Base(page), dir: t.TempDir()}
			r.read(bin, blocks)
		})
	}
}

// exampleProgram returns the folder of the program in examples/provider.
func exampleProgram(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir, "../../examples/provider")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build examples/provider: %v\n%s", err, out)
	}
	return dir
}

// A pageBlock is a fenced block of a page.
type pageBlock struct {
	language string
	file     string // name of the file in the block, if it is one
	section  int    // number of the section of the page
	line     int    // number of its first line
	text     string
}

var fileName = regexp.MustCompile("`([^`/ ]+\\.[a-z]+)`:$")

// readPage returns the fenced blocks of a page.
func readPage(path string) (blocks []pageBlock, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var open *pageBlock
	before, number, section := "", 0, 0
	for line := range strings.Lines(string(data)) {
		number++
		fence, isFence := strings.CutPrefix(strings.TrimRight(line, "\n"), "```")
		switch {
		case isFence && open != nil:
			blocks, open = append(blocks, *open), nil
		case isFence:
			open = &pageBlock{language: fence, section: section, line: number + 1}
			if name := fileName.FindStringSubmatch(before); name != nil {
				open.file = name[1]
			}
		case open != nil:
			open.text += line
		case strings.HasPrefix(line, "## "):
			section++
		}
		if text := strings.TrimSpace(line); text != "" {
			before = text
		}
	}
	if open != nil {
		return nil, fmt.Errorf("the block at line %d has no end", open.line)
	}
	return blocks, nil
}

// A reader runs the commands of a page.
type reader struct {
	t      *testing.T
	page   string
	dir    string
	shell  io.Writer
	status *bufio.Reader
	server *exec.Cmd
	port   string
	output string // output of the last command
}

// read runs a page from top to bottom.
func (r *reader) read(bin string, blocks []pageBlock) {
	sections := map[int]string{} // their commands
	for _, b := range blocks {
		if b.language == "sh" {
			sections[b.section] += b.text
		}
	}
	if len(sections) == 0 {
		return
	}
	defer r.stopServer()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
	defer cancel()
	env, err := r.startClusters(ctx, blocks)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.openShell(ctx, bin, env); err != nil {
		r.t.Fatal(err)
	}
	skipped := map[int]bool{}
	for section, text := range sections {
		if why := lacks(ctx, text); why != "" {
			r.t.Logf("%s: section %d is skipped: %s", r.page, section, why)
			skipped[section] = true
		}
	}
	for i, b := range blocks {
		switch {
		case skipped[b.section]:
		case b.file != "":
			if err := os.WriteFile(filepath.Join(r.dir, b.file), []byte(b.text), 0o600); err != nil {
				r.t.Fatal(err)
			}
		case b.language == "sh":
			for _, c := range r.commandsOf(ctx, b) {
				r.typeIn(ctx, c)
			}
		case b.language == "text" && i > 0 && blocks[i-1].language == "sh":
			r.compare(b)
		}
		if r.t.Failed() {
			return // later commands would fail too
		}
	}
}

// openShell starts a bash with an empty home.
func (r *reader) openShell(ctx context.Context, bin string, env []string) error {
	// The context of a test ends before its cleanups. The shell must live until then, to end its jobs.
	bash := exec.CommandContext(context.WithoutCancel(ctx), "bash", "--noprofile", "--norc")
	bash.Dir = r.dir
	played, installed, _ := strings.Cut(os.Getenv("PATH"), string(os.PathListSeparator))
	bash.Env = append(os.Environ(), "HOME="+r.dir, "KUBECONFIG=", "GORACE=atexit_sleep_ms=0",
		"PATH="+strings.Join([]string{played, bin, installed, clients()}, string(os.PathListSeparator)))
	tools, err := prepareTools(r.dir)
	if err != nil {
		return err
	}
	bash.Env = slices.Concat(bash.Env, tools, env)
	in, err := bash.StdinPipe()
	if err != nil {
		return err
	}
	status, statusEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	bash.ExtraFiles = []*os.File{statusEnd}
	if err := bash.Start(); err != nil {
		return err
	}
	r.shell, r.status = in, bufio.NewReader(status)
	context.AfterFunc(ctx, func() { _ = status.SetReadDeadline(time.Now()) }) // a command may never end
	r.t.Cleanup(func() {
		_ = in.Close() // ends the shell
		hangs := time.AfterFunc(time.Minute, func() { _ = bash.Process.Kill() })
		_ = bash.Wait() // with the status of its last command
		hangs.Stop()
		_ = statusEnd.Close() // the test is over
		_ = status.Close()
	})
	// The README runs kcp from source, which is this program. Jobs end with the shell.
	_, err = io.WriteString(in, "unset KUBECONFIG\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\ngo() { [ \"$1 $2\" = 'run ./cmd/kcp' ] || return 1; shift 2; kcp \"$@\"; }\n"+kindOfPages)
	return err
}

// A pageCommand is a command of a page with the line that it begins at.
type pageCommand struct {
	line int
	text string
}

// commandsOf splits a block into commands; bash determines the end of each.
func (r *reader) commandsOf(ctx context.Context, b pageBlock) (commands []pageCommand) {
	next := pageCommand{line: b.line}
	for i, line := range strings.SplitAfter(b.text, "\n") {
		next.text += line
		if strings.TrimSpace(next.text) == "" {
			next = pageCommand{line: b.line + i + 1}
			continue
		}
		if strings.Contains(next.text, "<<") && !strings.HasSuffix(strings.TrimSpace(next.text), "EOF") || strings.HasSuffix(strings.TrimSpace(line), "\\") {
			continue // bash accepts the end of the input as the end of a here-document
		}
		if exec.CommandContext(ctx, "bash", "-n", "-c", next.text).Run() == nil {
			commands = append(commands, next)
			next = pageCommand{line: b.line + i + 1}
		}
	}
	if strings.TrimSpace(next.text) != "" {
		r.t.Errorf("%s:%d: this is no complete command: %s", r.page, next.line, next.text)
	}
	return commands
}

var (
	starts = regexp.MustCompile(`^(kcp|go run \./cmd/kcp) start\b`)
	fails  = regexp.MustCompile(`# fails: (.+)$`)
	folder = regexp.MustCompile(`--root-directory=(\S+)`)
)

// typeIn runs a command and checks its exit status and output.
func (r *reader) typeIn(ctx context.Context, c pageCommand) {
	text := strings.TrimSpace(c.text)
	switch {
	case strings.HasPrefix(text, "# Press Ctrl-C"):
		r.stopServer()
		return
	case text == "make check" || strings.HasPrefix(text, "#"):
		return
	case starts.MatchString(text):
		r.startServer(ctx, c)
		return
	}
	if r.port != "" {
		text = strings.ReplaceAll(text, "127.0.0.1:6443", "127.0.0.1:"+r.port)
	}
	file, out, began := filepath.Join(r.dir, ".command"), filepath.Join(r.dir, ".output"), time.Now()
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	run := fmt.Sprintf(". %s </dev/null", file)
	if typed.MatchString(text) {
		run = terminal(text, out)
	}
	if _, err := fmt.Fprintf(r.shell, "%s >%s 2>&1; echo $? >&3\n", run, out); err != nil {
		r.t.Fatal(err)
	}
	status, err := r.status.ReadString('\n')
	if err != nil {
		r.t.Fatalf("%s:%d: the shell or its time ended in: %s (%v)", r.page, c.line, text, err)
	}
	output, err := os.ReadFile(out)
	if err != nil {
		r.t.Fatal(err)
	}
	r.output = string(output)
	r.t.Logf("%s:%d: %s: %v", r.page, c.line, text, time.Since(began).Round(time.Millisecond)) // for go test -v
	for _, match := range typed.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(r.output, match[1]) {
			r.t.Errorf("%s:%d: %s\nnever shows %q:\n%s", r.page, c.line, text, match[1], r.output)
		}
	}
	failed := strings.TrimSpace(status) != "0"
	switch want := fails.FindStringSubmatch(text); {
	case want == nil && failed:
		r.t.Errorf("%s:%d: %s\nexit status %s%s", r.page, c.line, text, status, r.output)
	case want != nil && !failed:
		r.t.Errorf("%s:%d: %s\nshould fail and did not:\n%s", r.page, c.line, text, r.output)
	case want != nil && !strings.Contains(r.output, want[1]):
		r.t.Errorf("%s:%d: %s\nfails with another text:\n%s", r.page, c.line, text, r.output)
	}
}

// startServer runs the server as in a second terminal.
func (r *reader) startServer(ctx context.Context, c pageCommand) {
	r.stopServer()
	args := strings.Fields(starts.ReplaceAllString(strings.TrimSpace(c.text), ""))
	r.server = exec.CommandContext(ctx, "kcp", append([]string{"start", "--secure-port=0"}, args...)...)
	r.server.Dir = r.dir
	r.server.Env = append(os.Environ(), "HOME="+r.dir, "GORACE=atexit_sleep_ms=0")
	log, err := os.Create(filepath.Join(r.dir, ".server.log"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.server.Stdout, r.server.Stderr = log, log
	if err := r.server.Start(); err != nil {
		r.t.Fatal(err)
	}
	_ = log.Close() // the server has its own descriptor
	root := rootDirectory
	if chosen := folder.FindStringSubmatch(c.text); chosen != nil {
		root = chosen[1]
	}
	kubeconfig := filepath.Join(r.dir, root, "admin.kubeconfig")
	for {
		if server, err := serves(kubeconfig); err == nil {
			r.port = server[strings.LastIndexByte(server, ':')+1:]
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			text, _ := os.ReadFile(log.Name())
			r.t.Fatalf("%s:%d: the server does not get ready:\n%s", r.page, c.line, text)
		}
	}
}

func (r *reader) stopServer() {
	if r.server == nil {
		return
	}
	if err := r.server.Process.Signal(syscall.SIGINT); err == nil {
		_ = r.server.Wait() // it was interrupted
	}
	r.server = nil
}

// compare checks that the lines of a block are in the output, in their order.
func (r *reader) compare(b pageBlock) {
	output := strings.Split(r.output, "\n")
	for i, want := range strings.Split(strings.TrimSpace(b.text), "\n") {
		pattern := regexp.MustCompile("^" + anything.ReplaceAllString(regexp.QuoteMeta(strings.TrimSpace(want)), ".*") + "$")
		for len(output) > 0 && !pattern.MatchString(strings.TrimSpace(output[0])) {
			output = output[1:]
		}
		if len(output) == 0 {
			r.t.Errorf("%s:%d: the page shows %q; the output is:\n%s", r.page, b.line+i, want, r.output)
			return
		}
	}
}

// anything matches "…", and blanks, because their number depends on the columns.
var anything = regexp.MustCompile(` *…| {2,}`)

// TestCodeInPages checks that an example, or a test of a public package, contains the Go code
// of README.md and the pages of docs.
func TestCodeInPages(t *testing.T) {
	root := filepath.Join("..", "..")
	var code []string
	for _, pattern := range []string{"kcp_test.go", "examples/*/*.go", "client/*_test.go", "kcptest/*_test.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			code = append(code, flat(string(text)))
		}
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		blocks, err := readPage(page)
		if err != nil {
			t.Error(err)
		}
		for _, b := range blocks {
			shown := func(text string) bool { return strings.Contains(text, flat(b.text)) }
			switch b.language {
			case "go":
				if !slices.ContainsFunc(code, shown) {
					t.Errorf("%s:%d: this code is in no test or example", page, b.line)
				}
			case "sh", "text", "yaml":
			default:
				t.Errorf("%s:%d: a block of %q; use sh, go, yaml or text", page, b.line, b.language)
			}
		}
	}
}

// flat returns code without indentation and empty lines.
func flat(code string) string {
	var out strings.Builder
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line != "" {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

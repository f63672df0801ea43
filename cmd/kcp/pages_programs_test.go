package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// foreign matches commands that run a program which is neither part of kcp nor of an
// ordinary machine.
var foreign = regexp.MustCompile(`(?m)^(?:[A-Z]+=\S+ )?(agent|crane|helm|k9s|kube-state-metrics|kustomize-controller|node|npm|python3|source-controller|terraform|tofu) `)

// lacks tells why the commands of a section cannot run here, or returns "". Foreign programs
// run only when NIGHTLY is set and they are installed; "make clients" builds some of them.
func lacks(ctx context.Context, section string) string {
	for _, match := range foreign.FindAllStringSubmatch(section, -1) {
		program := match[1]
		if os.Getenv("NIGHTLY") == "" {
			return program + " runs only when NIGHTLY is set"
		}
		check := "command -v " + program
		switch program {
		case "k9s":
			check = "type k9s script"
		case "python3":
			check = "python3 -c 'import kubernetes'"
		}
		cmd := exec.CommandContext(ctx, "bash", "-c", check)
		cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+string(os.PathListSeparator)+clients())
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Sprintf("%s: %v\n%s", check, err, out)
		}
	}
	return ""
}

// clients returns the folder in which "make clients" puts its programs.
func clients() string {
	dir, err := filepath.Abs(filepath.Join("..", "..", "bin", "clients"))
	if err != nil {
		panic(err) // there is no working directory
	}
	return dir
}

// prepareTools puts into the home the files that foreign programs need, and returns the
// environment with which they find them:
//
//   - Terraform and OpenTofu install the providers that "make clients" has built, if it has.
//   - k9s does not ask the internet for its latest version.
//   - The definitions of Flux are there, as if they had been downloaded.
func prepareTools(home string) (env []string, err error) {
	definitions, err := filepath.Glob(filepath.Join(clients(), "*.crds.yaml"))
	if err != nil {
		return nil, err
	}
	for _, file := range definitions {
		if err := os.Symlink(file, filepath.Join(home, filepath.Base(file))); err != nil {
			return nil, err
		}
	}
	k9s := filepath.Join(home, ".k9s")
	if err := os.Mkdir(k9s, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(k9s, "config.yaml"), []byte("k9s: {skipLatestRevCheck: true}\n"), 0o600); err != nil {
		return nil, err
	}
	env = []string{"K9S_CONFIG_DIR=" + k9s}
	mirror := filepath.Join(clients(), "mirror")
	if _, err := os.Stat(mirror); err != nil {
		return env, nil // Terraform asks its registry
	}
	config := fmt.Sprintf("provider_installation {\n  filesystem_mirror {\n    path = %q\n  }\n}\n", mirror)
	file := filepath.Join(home, ".terraformrc")
	return append(env, "TF_CLI_CONFIG_FILE="+file), os.WriteFile(file, []byte(config), 0o600)
}

// typed matches what a user of a terminal types after the screen shows a text.
var typed = regexp.MustCompile(`at "([^"]+)" type ([^ ,]+)`)

// terminal returns a command that runs the command in the file .command, in a terminal, and types
// what its comment says. All that the terminal shows is in the output. A text that it does not
// show within a minute does not stop the command; typeIn reports that.
func terminal(text, output string) string {
	wait := func(condition string) string {
		return "for i in {1..600}; do " + condition + " && break; sleep 0.1; done; "
	}
	var keys strings.Builder
	for _, match := range typed.FindAllStringSubmatch(text, -1) {
		fmt.Fprintf(&keys, "%s printf '%s\\r'; ", wait(fmt.Sprintf("{ grep -q '%s' %s || [ -e .exited ]; }", match[1], output)), match[2])
	}
	return "rm -f .exited; { " + keys.String() + wait("[ -e .exited ]") + "} | TERM=xterm-256color timeout 4m " +
		"script -qefc 'stty rows 40 cols 120; bash .command; status=$?; touch .exited; exit $status' /dev/null"
}

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
var foreign = regexp.MustCompile(`(?m)^(agent|helm|k9s|kube-state-metrics|node|npm|python3|terraform|tofu) `)

// lacks tells why the commands of a section cannot run here, or returns "". Foreign programs
// run only when NIGHTLY is set and they are installed; "make clients" builds some of them.
func lacks(ctx context.Context, section string) string {
	var programs []string
	for _, match := range foreign.FindAllStringSubmatch(section, -1) {
		programs = append(programs, match[1])
	}
	if strings.Contains(section, clusterKubeconfig) {
		programs = append(programs, "source-controller", "kustomize-controller")
	}
	for _, program := range programs {
		if os.Getenv("NIGHTLY") == "" {
			return program + " runs only when NIGHTLY is set"
		}
		check := "command -v " + program
		switch program {
		case "python3":
			check = "python3 -c 'import kubernetes'"
		case "k9s":
			check += " tmux"
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

// offerProviders lets Terraform install the providers that "make clients" has built, if it
// has, and returns the environment for that.
func offerProviders(home string) ([]string, error) {
	mirror := filepath.Join(clients(), "mirror")
	if _, err := os.Stat(mirror); err != nil {
		return nil, nil // Terraform asks its registry
	}
	config := fmt.Sprintf("provider_installation {\n  filesystem_mirror {\n    path = %q\n  }\n}\n", mirror)
	file := filepath.Join(home, ".terraformrc")
	return []string{"TF_CLI_CONFIG_FILE=" + file}, os.WriteFile(file, []byte(config), 0o600)
}

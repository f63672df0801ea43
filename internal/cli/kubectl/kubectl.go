// Package kubectl is kubectl inside a program of ours, so that a server can be
// tried out with nothing else installed. It hides which commands are added and
// which kubeconfig is used when nobody chose one.
package kubectl

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	componentcli "k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	"k8s.io/kubectl/pkg/cmd/util"

	"github.com/unforked/kcp/internal/cli"
)

// How many requests for discovery kubectl may make, as in its own main.
const (
	discoveryBurst = 300
	discoveryQPS   = 50
)

// adminKubeconfig is where a server leaves the kubeconfig of its administrator.
const adminKubeconfig = ".kcp/admin.kubeconfig"

// Main runs kubectl with the arguments that come after the word kubectl, and
// with the commands ws, kcp and create workspace built in. Other plugins are
// found as usual. It calls itself by the version release. It returns the exit code;
// most commands of kubectl end the process themselves when they fail.
//
// Unless KUBECONFIG or --kubeconfig is given or there is a ~/.kube/config, it
// sets KUBECONFIG to the .kcp/admin.kubeconfig of a server that was started in
// the same folder.
func Main(args []string, release string) int {
	if file := kubeconfig(args, os.Getenv(clientcmd.RecommendedConfigPathEnvVar), clientcmd.RecommendedHomeFile); file != "" {
		util.CheckErr(os.Setenv(clientcmd.RecommendedConfigPathEnvVar, file))
	}
	util.BehaviorOnFatal(fatal)
	_, _ = logs.GlogSetter(cmd.GetLogVerbosity(args)) // for what kubectl logs before it parses flags
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	kubectl := command(args, streams, release)
	util.CheckErr(runPlugin(kubectl, args))
	util.CheckErr(componentcli.RunNoErrOutput(kubectl))
	return 0
}

// kubeconfig returns the file to use because the user chose none, or nothing
// if there is a choice already, or no such file.
func kubeconfig(args []string, env, homeFile string) string {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	chosen := slices.ContainsFunc(args, func(arg string) bool {
		return arg == "--kubeconfig" || strings.HasPrefix(arg, "--kubeconfig=")
	})
	admin, err := filepath.Abs(adminKubeconfig)
	if chosen || env != "" || exists(homeFile) || err != nil || !exists(admin) {
		return ""
	}
	return admin
}

// fatal ends the process as kubectl does, and says what to do where kubectl only says
// that nobody answers at its default.
func fatal(msg string, code int) {
	if todo := advice(msg); todo != "" {
		msg = strings.TrimSuffix(msg, "\n") + "\n" + todo
	}
	if msg != "" {
		_, _ = fmt.Fprintln(os.Stderr, strings.TrimSuffix(msg, "\n"))
	}
	os.Exit(code)
}

// advice returns what to do about an error of kubectl that comes from having no kubeconfig.
func advice(msg string) string {
	if !strings.Contains(msg, "localhost:8080") || os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "" || exists(clientcmd.RecommendedHomeFile) {
		return ""
	}
	return "There is no kubeconfig. Set KUBECONFIG to that of your server, or call kcp in the folder in which the server was started: it is " + adminKubeconfig + " there."
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// command returns kubectl with our commands.
func command(args []string, streams genericiooptions.IOStreams, release string) *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().
		WithDiscoveryBurst(discoveryBurst).WithDiscoveryQPS(discoveryQPS).WithWarningPrinter(streams)
	kubectl := cmd.NewKubectlCommand(cmd.KubectlOptions{
		Arguments:   append([]string{"kubectl"}, args...),
		ConfigFlags: flags,
		IOStreams:   streams,
	})
	kubectl.SetArgs(args)
	kubectl.AddCommand(cli.Workspaces(streams), cli.KCP(streams))
	for _, c := range kubectl.Commands() {
		if cmd.IsSubcommandPluginAllowed(c.Name()) { // create
			c.AddCommand(cli.CreateWorkspace(streams))
		}
		if c.Name() == "version" {
			kubectl.RemoveCommand(c)
			kubectl.AddCommand(versionCommand(flags, streams, release))
		}
	}
	return kubectl
}

// runPlugin replaces this process by a plugin in the PATH if args name one and
// no command of kubectl. It comes after our commands are added, so that a
// plugin never hides one of them.
func runPlugin(kubectl *cobra.Command, args []string) error {
	found, rest, err := kubectl.Find(args)
	words := 0                      // how many words of args, at least, name the plugin
	late := func(arg string) bool { // a command that cobra adds only when it runs
		return arg == "help" || arg == cobra.ShellCompRequestCmd || arg == cobra.ShellCompNoDescRequestCmd
	}
	switch {
	case err != nil && !slices.ContainsFunc(args, late):
		words = 1
	case err == nil && cmd.IsSubcommandPluginAllowed(found.Name()) && len(rest) > 0 && !strings.HasPrefix(rest[0], "-"):
		words = len(args) - len(rest) + 1
	default:
		return nil
	}
	return cmd.HandlePluginCommand(cmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes), args, words)
}

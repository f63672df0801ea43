// Package kubectl is the kubectl that kcp contains, so that users need no other program to
// try a server. It hides which commands it adds to kubectl and which kubeconfig is the
// default.
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
	"github.com/unforked/kcp/internal/cli/workspaces"
)

// Client-side limits for discovery, as in the main function of kubectl.
const (
	discoveryBurst = 300
	discoveryQPS   = 50
)

// adminKubeconfig is the file to which a server writes its administrator's kubeconfig.
const adminKubeconfig = ".kcp/admin.kubeconfig"

// Main runs kubectl with args, which do not contain the word kubectl. The commands ws, kcp
// and create workspace are built in; other plugins work as usual. Release is the client
// version that kubectl reports. Main returns the exit code, but most commands of kubectl
// end the process themselves when they fail.
//
// If there is neither KUBECONFIG nor --kubeconfig nor a ~/.kube/config, Main sets
// KUBECONFIG to the .kcp/admin.kubeconfig in the current directory.
func Main(args []string, release string) int {
	if file := kubeconfig(args, os.Getenv(clientcmd.RecommendedConfigPathEnvVar), clientcmd.RecommendedHomeFile); file != "" {
		util.CheckErr(os.Setenv(clientcmd.RecommendedConfigPathEnvVar, file))
	}
	util.BehaviorOnFatal(fatal)
	_, _ = logs.GlogSetter(cmd.GetLogVerbosity(args)) // kubectl logs before it parses its flags
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	kubectl := command(args, streams, release)
	util.CheckErr(runPlugin(kubectl, args))
	util.CheckErr(componentcli.RunNoErrOutput(kubectl))
	return 0
}

// kubeconfig returns the default kubeconfig, or nothing if the user chose one or the
// default does not exist.
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

// fatal ends the process as kubectl does, with advice for users without a kubeconfig.
func fatal(msg string, code int) {
	if todo := advice(msg); todo != "" {
		msg = strings.TrimSuffix(msg, "\n") + "\n" + todo
	}
	if msg != "" {
		_, _ = fmt.Fprintln(os.Stderr, strings.TrimSuffix(msg, "\n"))
	}
	os.Exit(code)
}

// advice returns what to do about an error message of kubectl whose cause is that there is
// no kubeconfig. It is empty for other messages.
func advice(msg string) string {
	if !strings.Contains(msg, "localhost:8080") || os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "" || exists(clientcmd.RecommendedHomeFile) {
		return ""
	}
	return "There is no kubeconfig. Set KUBECONFIG to the kubeconfig of your server, or run kcp in the directory where the server was started: the file is " + adminKubeconfig + " there."
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// command returns kubectl with the added commands.
func command(args []string, streams genericiooptions.IOStreams, release string) *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().
		WithDiscoveryBurst(discoveryBurst).WithDiscoveryQPS(discoveryQPS).WithWarningPrinter(streams)
	kubectl := cmd.NewKubectlCommand(cmd.KubectlOptions{
		Arguments:   append([]string{"kubectl"}, args...),
		ConfigFlags: flags,
		IOStreams:   streams,
	})
	kubectl.SetArgs(args)
	kubectl.AddCommand(workspaces.Workspaces(streams), cli.KCP(streams))
	for _, c := range kubectl.Commands() {
		if cmd.IsSubcommandPluginAllowed(c.Name()) { // create
			c.AddCommand(workspaces.CreateWorkspace(streams))
		}
		if c.Name() == "version" {
			kubectl.RemoveCommand(c)
			kubectl.AddCommand(versionCommand(flags, streams, release))
		}
	}
	return kubectl
}

// runPlugin replaces this process by a plugin in the PATH if args name one and no command
// of kubectl. Call it after the commands are added: a plugin must not hide one of them.
func runPlugin(kubectl *cobra.Command, args []string) error {
	found, rest, err := kubectl.Find(args)
	words := 0                      // the minimum number of args that name the plugin
	late := func(arg string) bool { // cobra adds these commands when it runs
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

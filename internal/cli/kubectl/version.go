package kubectl

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/version"
	"k8s.io/kubectl/pkg/cmd/util"
	kubectlversion "k8s.io/kubectl/pkg/cmd/version"
	"sigs.k8s.io/yaml"
)

// versionCommand replaces kubectl's own command, which fails unless linker flags set the
// version of the client.
func versionCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams, release string) *cobra.Command {
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the client and server version information",
		Long:  "Print the client and server version information for the current context.",
		Example: `  # Print the client and server versions for the current context
  kubectl version`,
		Args: cobra.NoArgs,
	}
	client := c.Flags().Bool("client", false, "If true, shows client version only (no server required).")
	output := c.Flags().StringP("output", "o", "", "One of 'yaml' or 'json'.")
	c.Run = func(*cobra.Command, []string) {
		v := kubectlversion.Version{ClientVersion: clientVersion(release)}
		v.KustomizeVersion, _ = kubectlversion.GetKustomizeModVersion()
		var failed error
		if !*client {
			v.ServerVersion, failed = serverVersion(flags)
		}
		util.CheckErr(printVersion(streams, v, *output))
		util.CheckErr(failed)
	}
	return c
}

func clientVersion(release string) *apimachineryversion.Info {
	info := version.Get()
	info.GitVersion, info.GitCommit, info.Major, info.Minor = release, "", "", ""
	_, _ = fmt.Sscanf(release, "v%1s.%2s", &info.Major, &info.Minor)
	return &info
}

// serverVersion returns the version of the server, or nil if there is no kubeconfig.
func serverVersion(flags *genericclioptions.ConfigFlags) (*apimachineryversion.Info, error) {
	discovery, err := flags.ToDiscoveryClient()
	if clientcmd.IsEmptyConfig(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	discovery.Invalidate()
	return discovery.ServerVersion()
}

func printVersion(streams genericiooptions.IOStreams, v kubectlversion.Version, format string) error {
	var text []byte
	var err error
	switch format {
	case "":
		text = fmt.Appendf(nil, "Client Version: %s\n", v.ClientVersion.GitVersion)
		if v.KustomizeVersion != "" {
			text = fmt.Appendf(text, "Kustomize Version: %s\n", v.KustomizeVersion)
		}
		if v.ServerVersion != nil {
			text = fmt.Appendf(text, "Server Version: %s\n", v.ServerVersion.GitVersion)
		}
	case "yaml":
		text, err = yaml.Marshal(v)
	case "json":
		text, err = json.MarshalIndent(v, "", "  ")
		text = append(text, '\n')
	default:
		err = errors.New("--output must be 'yaml' or 'json'")
	}
	if err == nil {
		_, err = streams.Out.Write(text)
	}
	return err
}

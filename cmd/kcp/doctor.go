package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/doctor"
	"github.com/unforked/kcp/internal/upstream"
)

// patient holds the flags of kcp doctor, which are some of those of kcp start.
type patient struct {
	server kcp.Server // only its directory, URL and etcd
	etcd   etcdFlags
	check  doctor.Server
	bind   string
	port   int
	output string
}

func doctorCommand() *cobra.Command {
	p := &patient{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the directory, the disk, the etcd and the certificates of a server",
		Long: `Check the directory, the disk, the etcd, the certificates, the limits and the clock of a
server, and say what to do about each problem. The server may run or not. Give doctor the flags
of kcp start. It exits with 1 if there is a problem, and with 0 if there are only warnings.`,
		Example: `  # Check the server on .kcp
  kcp doctor

  # Check an external etcd, for a script
  kcp doctor --etcd-servers=https://etcd-1:2379 --etcd-cafile=ca.crt -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			quietLog()
			return p.examine(ctx, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.server.Dir, "root-directory", rootDirectory, "Directory of the server.")
	f.StringVar(&p.bind, "bind-address", "127.0.0.1", "IP address that the server listens at.")
	f.IntVar(&p.port, "secure-port", 6443, "Port that the server listens at.")
	f.StringVar(&p.server.ExternalURL, "shard-external-url", "", "URL of the server for clients, if it differs from the address that it listens at.")
	f.StringVar(&p.check.CertFile, "tls-cert-file", "", "Serving certificate. (default the server's own)")
	f.StringVar(&p.check.KeyFile, "tls-private-key-file", "", "Key of the serving certificate.")
	f.StringVarP(&p.output, "output", "o", "text", "Format of the result: text or json.")
	p.etcd.add(f, &p.server)
	cmd.MarkFlagsRequiredTogether("tls-cert-file", "tls-private-key-file")
	return cmd
}

// errProblems is the error of kcp doctor if there are problems.
var errProblems = errors.New("there are problems")

func (p *patient) examine(ctx context.Context, out io.Writer) error {
	if p.output != "text" && p.output != "json" {
		return fmt.Errorf("--output %q is neither text nor json", p.output)
	}
	if err := p.etcd.apply(&p.server.Etcd); err != nil {
		return err
	}
	p.check.Dir, p.check.Etcd, p.check.URL, p.check.Kubernetes = p.server.Dir, p.server.Etcd, p.server.ExternalURL, upstream.Minor
	p.check.Prefix = path.Join("/", p.server.EtcdPrefix)
	p.check.Listen = net.JoinHostPort(p.bind, strconv.Itoa(p.port))
	all := doctor.Examine(ctx, p.check)
	if err := printFindings(out, all, p.output == "json"); err != nil {
		return err
	}
	if doctor.Worst(all) == doctor.Problem {
		return errProblems
	}
	return nil
}

func printFindings(out io.Writer, all []doctor.Finding, asJSON bool) error {
	if asJSON {
		to := json.NewEncoder(out)
		to.SetIndent("", "  ")
		return to.Encode(struct {
			Result   doctor.Level     `json:"result"`
			Findings []doctor.Finding `json:"findings"`
		}{doctor.Worst(all), all})
	}
	for _, f := range all {
		if _, err := fmt.Fprintf(out, "%-8s %-13s %s\n", f.Level, f.Check, f.Message); err != nil {
			return err
		}
		if f.Do == "" {
			continue
		}
		if _, err := fmt.Fprintf(out, "%22s → %s\n", "", f.Do); err != nil {
			return err
		}
	}
	return nil
}

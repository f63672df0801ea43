package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/unforked/kcp"
)

const (
	embedded = "embedded"
	// passwordVariable is for a password that should not be in a file either.
	passwordVariable = "KCP_ETCD_PASSWORD"
)

// etcdFlags are the flags of start that say where the data is.
type etcdFlags struct {
	servers      []string
	passwordFile string
	interval     time.Duration
}

func (e *etcdFlags) add(f *pflag.FlagSet, s *kcp.Server) {
	f.StringSliceVar(&e.servers, "etcd-servers", []string{embedded}, `URLs of an etcd, as in https://etcd-1:2379, separated by commas; "embedded" for one in this process.`)
	f.StringVar(&s.EtcdPrefix, "etcd-prefix", "/registry", "Prefix of all keys in etcd.")
	f.StringVar(&s.Etcd.CAFile, "etcd-cafile", "", "PEM file with the certificate authorities of the etcd servers. (default those of the system)")
	f.StringVar(&s.Etcd.CertFile, "etcd-certfile", "", "PEM file with the client certificate for etcd.")
	f.StringVar(&s.Etcd.KeyFile, "etcd-keyfile", "", "PEM file with the key of the client certificate for etcd.")
	f.StringVar(&s.Etcd.Username, "etcd-username", "", "User of etcd. Its password is in --etcd-password-file, or in the environment as "+passwordVariable+".")
	f.StringVar(&e.passwordFile, "etcd-password-file", "", "File with the password of the user of etcd.")
	f.DurationVar(&e.interval, "etcd-compaction-interval", 5*time.Minute, "How long the history of changes is kept; 0 leaves compacting etcd to somebody else.")
	f.StringVar(&s.Etcd.Dir, "embedded-etcd-directory", "", "Directory for the data of the embedded etcd. (default <root-directory>/etcd-server)")
	f.Int64Var(&s.Etcd.WALSizeBytes, "embedded-etcd-wal-size-bytes", 0, "Size of a file of the log of the embedded etcd. (default 64 MiB)")
	f.Int64Var(&s.Etcd.QuotaBackendBytes, "embedded-etcd-quota-backend-bytes", 0, "Size up to which the database of the embedded etcd may grow. (default 8 GiB)")
	f.BoolVar(&s.Etcd.ForceNewCluster, "embedded-etcd-force-new-cluster", false, "Start the embedded etcd alone on data that comes from a member of a larger cluster.")
}

// apply checks the flags, and sets what of the settings they do not set directly.
func (e *etcdFlags) apply(to *kcp.Etcd) error {
	if e.interval < 0 {
		return fmt.Errorf("--etcd-compaction-interval %s is less than nothing; 0 leaves compacting etcd to somebody else", e.interval)
	}
	if to.CompactionInterval = e.interval; e.interval == 0 {
		to.CompactionInterval = -1
	}
	if slices.Equal(e.servers, []string{embedded}) {
		return e.alone(to)
	}
	if len(e.servers) == 0 || slices.Contains(e.servers, embedded) {
		return fmt.Errorf("--etcd-servers: give the URLs of an etcd, or %q alone", embedded)
	}
	if to.Dir != "" || to.WALSizeBytes != 0 || to.QuotaBackendBytes != 0 || to.ForceNewCluster {
		return errors.New("the flags --embedded-etcd-… are for --etcd-servers=embedded; configure the etcd of --etcd-servers where it runs")
	}
	to.Servers = e.servers
	return e.password(to)
}

func (e *etcdFlags) alone(to *kcp.Etcd) error {
	if to.CAFile != "" || to.CertFile != "" || to.KeyFile != "" || to.Username != "" || e.passwordFile != "" {
		return errors.New("certificates and credentials for etcd need --etcd-servers: the embedded etcd has none")
	}
	if to.WALSizeBytes < 0 || to.QuotaBackendBytes < 0 {
		return errors.New("--embedded-etcd-wal-size-bytes and --embedded-etcd-quota-backend-bytes are sizes; they cannot be less than nothing")
	}
	return nil
}

func (e *etcdFlags) password(to *kcp.Etcd) error {
	to.Password = os.Getenv(passwordVariable)
	if e.passwordFile != "" {
		text, err := os.ReadFile(e.passwordFile)
		if err != nil {
			return fmt.Errorf("--etcd-password-file: %w", err)
		}
		to.Password = strings.TrimRight(string(text), "\r\n")
	}
	if (to.Username == "") != (to.Password == "") {
		return fmt.Errorf("--etcd-username needs a password, in --etcd-password-file or in the environment as %s, and the other way round", passwordVariable)
	}
	return nil
}

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
)

const (
	inProcess = "embedded"
	// passwordVariable is the environment variable for the password of the etcd user.
	passwordVariable = "KCP_ETCD_PASSWORD"
)

// etcdFlags holds the flags about etcd.
type etcdFlags struct {
	servers      []string
	passwordFile string
	interval     time.Duration
	listen       listenFlags
}

// listenFlags are flags of the existing kcp that have no effect: the embedded etcd listens
// nowhere.
type listenFlags struct {
	clientPort, peerPort string
	metricsURLs          []string
}

func (l *listenFlags) add(f *pflag.FlagSet) {
	const why = "Accepted for the existing kcp, without effect: the embedded etcd listens nowhere."
	f.StringVar(&l.clientPort, "embedded-etcd-client-port", "", why)
	f.StringVar(&l.peerPort, "embedded-etcd-peer-port", "", why)
	f.StringSliceVar(&l.metricsURLs, "embedded-etcd-listen-metrics-urls", nil, why)
}

// report logs that flags which are set have no effect.
func (l *listenFlags) report() {
	var set []string
	for name, is := range map[string]bool{
		"--embedded-etcd-client-port": l.clientPort != "", "--embedded-etcd-peer-port": l.peerPort != "", "--embedded-etcd-listen-metrics-urls": len(l.metricsURLs) > 0,
	} {
		if is {
			set = append(set, name)
		}
	}
	if len(set) > 0 {
		slices.Sort(set)
		klog.Warningf("The embedded etcd listens nowhere: these flags have no effect: %s", strings.Join(set, ", "))
	}
}

func (e *etcdFlags) add(f *pflag.FlagSet, s *kcp.Server) {
	f.StringSliceVar(&e.servers, "etcd-servers", []string{inProcess}, `URLs of an etcd, as in https://etcd-1:2379, separated by commas; "embedded" for one in this process.`)
	f.StringVar(&s.EtcdPrefix, "etcd-prefix", "/registry", "Prefix of all keys in etcd.")
	f.StringVar(&s.Etcd.CAFile, "etcd-cafile", "", "PEM file with the certificate authorities of the etcd servers. (default those of the system)")
	f.StringVar(&s.Etcd.CertFile, "etcd-certfile", "", "PEM file with the client certificate for etcd.")
	f.StringVar(&s.Etcd.KeyFile, "etcd-keyfile", "", "PEM file with the key of the client certificate for etcd.")
	f.StringVar(&s.Etcd.Username, "etcd-username", "", "User name for etcd. The password is in --etcd-password-file or in the environment variable "+passwordVariable+".")
	f.StringVar(&e.passwordFile, "etcd-password-file", "", "File with the password for --etcd-username.")
	f.DurationVar(&e.interval, "etcd-compaction-interval", 5*time.Minute, "How long etcd keeps the history of changes; 0 disables compaction by this server.")
	f.StringVar(&s.Etcd.Dir, "embedded-etcd-directory", "", "Directory for the data of the embedded etcd. (default <root-directory>/etcd-server)")
	f.Int64Var(&s.Etcd.WALSizeBytes, "embedded-etcd-wal-size-bytes", 0, "Size of a file of the write-ahead log of the embedded etcd, in bytes. (default 64 MiB)")
	f.Int64Var(&s.Etcd.QuotaBackendBytes, "embedded-etcd-quota-backend-bytes", 0, "Maximum size of the database of the embedded etcd, in bytes. (default 8 GiB)")
	e.listen.add(f)
	f.BoolVar(&s.Etcd.ForceNewCluster, "embedded-etcd-force-new-cluster", false, "Start the embedded etcd as a cluster of one, with the data of a member of a larger cluster.")
}

// apply checks the flags, and sets the options that the flags do not set directly.
func (e *etcdFlags) apply(to *kcp.Etcd) error {
	if e.interval < 0 {
		return fmt.Errorf("--etcd-compaction-interval %s must not be negative; 0 disables compaction by this server", e.interval)
	}
	if to.CompactionInterval = e.interval; e.interval == 0 {
		to.CompactionInterval = -1
	}
	if slices.Equal(e.servers, []string{inProcess}) {
		return e.alone(to)
	}
	if len(e.servers) == 0 || slices.Contains(e.servers, inProcess) {
		return fmt.Errorf("--etcd-servers: give the URLs of an etcd, or %q alone", inProcess)
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
		return errors.New("--embedded-etcd-wal-size-bytes and --embedded-etcd-quota-backend-bytes must not be negative")
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

package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// links are the names under which kubectl finds the plugin and its completions, besides
// kubectl-kcp.
func links() []string {
	return []string{"kubectl-ws", "kubectl-workspace", "kubectl-create-workspace", "kubectl_complete-ws", "kubectl_complete-workspace", "kubectl_complete-kcp"}
}

// An entry is a file, a directory or a link of an archive.
type entry struct {
	name    string // with slashes
	file    string // source file of the content
	content []byte // the content if file is empty
	link    string // the target of a link
	dir     bool
	mode    fs.FileMode
	owner   int
}

// pack writes the archive and the bills of materials for a platform.
func (r *release) pack(work string, p platform) error {
	name := "kcp_" + r.version + "_" + p.os + "_" + p.arch
	var entries []entry
	for _, program := range programs() {
		file := filepath.Join(binaries(work, p), p.program(program))
		bill, err := r.bill(program, p, file)
		if err != nil {
			return err
		}
		if err := write(filepath.Join(r.out, program+strings.TrimPrefix(name, "kcp")+".cdx.json"), bill); err != nil {
			return err
		}
		entries = append(entries, entry{name: p.program(program), file: file, mode: 0o755})
	}
	for _, link := range links() {
		if p.os != "windows" {
			entries = append(entries, entry{name: link, link: "kubectl-kcp", mode: 0o777})
		} else if link == "kubectl-ws" { // an archive for Windows has no links
			entries = append(entries, entry{name: p.program(link), file: filepath.Join(binaries(work, p), p.program("kubectl-kcp")), mode: 0o755})
		}
	}
	for _, file := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		entries = append(entries, entry{name: file, file: filepath.Join(r.root, file), mode: 0o644})
	}
	for _, dir := range []string{"completions", "man"} {
		err := filepath.WalkDir(filepath.Join(work, dir), func(file string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				relative, _ := filepath.Rel(work, file)
				entries = append(entries, entry{name: filepath.ToSlash(relative), file: file, mode: 0o644})
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	for i := range entries {
		entries[i].name = path.Join(name, entries[i].name)
	}
	if p.os == "windows" {
		return create(filepath.Join(r.out, name+".zip"), func(w io.Writer) error { return writeZip(w, entries, r.time) })
	}
	return create(filepath.Join(r.out, name+".tar.gz"), func(w io.Writer) error {
		z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
		if err != nil {
			return err
		}
		return errors.Join(writeTar(z, entries, r.time), z.Close())
	})
}

// create writes a new file.
func create(name string, fill func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(fill(f), f.Close())
}

func sorted(entries []entry) []entry {
	return slices.SortedFunc(slices.Values(entries), func(a, b entry) int { return strings.Compare(a.name, b.name) })
}

// read returns the content of an entry.
func (e entry) read() ([]byte, error) {
	if e.file == "" {
		return e.content, nil
	}
	return os.ReadFile(e.file)
}

// writeTar writes entries in the order of their names, all of one time.
func writeTar(w io.Writer, entries []entry, when time.Time) error {
	t := tar.NewWriter(w)
	for _, e := range sorted(entries) {
		h := &tar.Header{Name: e.name, Mode: int64(e.mode.Perm()), ModTime: when, Uid: e.owner, Gid: e.owner, Format: tar.FormatPAX, Typeflag: tar.TypeReg}
		if e.mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		var content []byte
		var err error
		switch {
		case e.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		case e.dir:
			h.Typeflag, h.Name = tar.TypeDir, e.name+"/"
		default:
			content, err = e.read()
			h.Size = int64(len(content))
		}
		if err == nil {
			err = t.WriteHeader(h)
		}
		if err == nil {
			_, err = t.Write(content)
		}
		if err != nil {
			return err
		}
	}
	return t.Close()
}

// writeZip writes entries, which must be files, in the order of their names.
func writeZip(w io.Writer, entries []entry, when time.Time) error {
	z := zip.NewWriter(w)
	for _, e := range sorted(entries) {
		content, err := e.read()
		if err != nil {
			return err
		}
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: when}
		h.SetMode(e.mode)
		f, err := z.CreateHeader(h)
		if err == nil {
			_, err = f.Write(content)
		}
		if err != nil {
			return err
		}
	}
	return z.Close()
}

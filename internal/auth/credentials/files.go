package credentials

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// replaceFile atomically replaces the content of the file at path, with mode 0600. Readers
// see the old content or the new one, never a part.
func replaceFile(path string, data []byte) error {
	return viaTemporary(path, data, os.Rename)
}

// createFile is replaceFile for a file that must not exist yet. It returns fs.ErrExist if
// the file exists.
func createFile(path string, data []byte) error {
	return viaTemporary(path, data, os.Link)
}

func viaTemporary(path string, data []byte, publish func(from, to string) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if e := os.Remove(f.Name()); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return publish(f.Name(), path)
}

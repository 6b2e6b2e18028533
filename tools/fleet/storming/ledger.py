"""The ledger as stored in the bucket: each segment is copied once, and DuckDB counts how often each mark occurs."""

import collections
import json
import subprocess

import boto3
import duckdb
from botocore.config import Config

BUCKET, FOLDER = "mcpproxy", "fleet"
VERIFY_SECONDS = 300


class Ledger:
    def __init__(self, endpoint, environment, folder, binary):
        self.environment, self.folder, self.binary = environment, folder, binary
        self.s3 = boto3.client(
            "s3", endpoint_url=endpoint, region_name=environment["AWS_REGION"],
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 8}))
        self.seen, self.marks, self.notes, self.records = set(), collections.Counter(), {}, 0
        folder.mkdir(parents=True)

    def nodes(self):
        found = self.s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{FOLDER}/nodes/", Delimiter="/")
        return [it["Prefix"] for it in found.get("CommonPrefixes", [])]

    def read(self):
        """Copies new segments."""
        new = []
        for node in self.nodes():
            prefix = f"{node}segments/"
            pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
            for key in (it["Key"] for page in pages for it in page.get("Contents", [])):
                if key not in self.seen:
                    path = self.folder / key.replace("/", "_")
                    path.write_bytes(self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
                    new.append((key, path))
        if new:
            rows = duckdb.connect().execute(
                "SELECT arguments, status, type, parent_id FROM read_parquet(?)", [[str(path) for _, path in new]]).fetchall()
            for arguments, status, kind, _ in rows:
                self.records += 1
                if kind == "tool_call" and arguments.startswith('{"note":'):
                    self.marks[json.loads(arguments)["note"]] += 1
            for key, path in new:
                self.seen.add(key)
                path.unlink()

    def verify(self):
        """Whether all chains verify using only the bucket, and the report."""
        done = subprocess.run(
            [self.binary, "activity", "verify", "--store", f"s3://{BUCKET}/{FOLDER}", "--json"], capture_output=True,
            text=True, timeout=VERIFY_SECONDS, env=self.environment)
        try:
            report = json.loads(done.stdout)
        except ValueError:
            return False, {"error": done.stdout + done.stderr}
        return done.returncode == 0 and report["sound"], report

"""The eval harness: tasks as data, each run in a throwaway project, judged by what it expects, and journalled as soon as it is done."""

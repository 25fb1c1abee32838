from tailrace import cli

cli.main()
